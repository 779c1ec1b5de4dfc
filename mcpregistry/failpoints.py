"""Named places at which a test can let this process crash, fail or stall. Nothing happens otherwise.

``SLIPSNISSE_FAILPOINT=name:crash`` kills the process there as ``kill -9`` would, ``name:raise`` raises,
``name:stall`` stops it until somebody sends SIGCONT.
"""

from __future__ import annotations

import os
import signal

NAMES = (
    "held",  # a call was just recorded as pending
    "voted",  # the vote is committed, nobody has been told
    "before_claim",  # its grounds were checked
    "after_claim",  # the claim is durable, nothing has been sent
    "after_send",  # the first byte may have left
    "before_end",  # the answer is here and not yet recorded
)

_chosen, _, _how = os.environ.get("SLIPSNISSE_FAILPOINT", "").partition(":")


class FailpointReached(RuntimeError):
    pass


def failpoint(name: str) -> None:
    if name == _chosen:
        _reached(name)


def _reached(name: str) -> None:
    if _how == "raise":
        raise FailpointReached(name)
    os.kill(os.getpid(), signal.SIGSTOP if _how == "stall" else signal.SIGKILL)
