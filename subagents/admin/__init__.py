"""Pages for expert tools: who answers, what they are, and every run."""

from subagents.admin import expert, maintenance, provider, run, trial

__all__ = ["expert", "maintenance", "provider", "run", "trial"]
