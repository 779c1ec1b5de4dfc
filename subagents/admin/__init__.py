"""Pages for expert tools: who answers, what they are, and every run."""

from subagents.admin import expert, provider, run

__all__ = ["expert", "provider", "run"]
