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
    "run_begun",  # a run and its handle are written, not committed
    "run_leased",  # the run is this worker's
    "run_turn_begun",  # its model is about to be asked, the money is set aside
    "run_turn_ended",  # the model's answer and its calls are committed
    "run_call_started",  # a tool call is about to be made
    "run_call_answered",  # its end is known and not yet written
    "run_call_ended",  # its end is committed
    "run_ending",  # the run's end is written with its call's, not committed
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
