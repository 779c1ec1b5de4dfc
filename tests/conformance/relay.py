"""What the suite starts as its client: hands the scenario to the test's own process, which has
everything loaded.

``python -S relay.py SOCKET URL``
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as line:
    line.connect(sys.argv[1])
    said = {name: os.environ.get(f"MCP_CONFORMANCE_{name}", "") for name in ("SCENARIO", "CONTEXT")}
    line.sendall(json.dumps(said | {"URL": sys.argv[2]}).encode() + b"\n")
    failure = line.makefile().read()
sys.exit(failure or 0)
