"""What a worker loads with its first run, which takes seconds. A branch of the fork server that
imports this has it loaded (see ``PRELOAD`` there), so that a worker is killed at work, and not
while it loads."""

from subagents.llm.client import load_litellm
from subagents.llm.tokens import REFERENCE, counter

load_litellm()
counter(REFERENCE)("warm")
