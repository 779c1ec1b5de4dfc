"""Reads everything and never answers. With FAKE_LINGERS it does not end with its input either."""

import os
import sys
import time

for _ in sys.stdin.buffer:
    pass
while "FAKE_LINGERS" in os.environ:
    time.sleep(60)
