"""Pages for expert tools: who answers, what they are, and every run."""

from subagents.admin import effort, expert, headend, maintenance, provider, run, trial

__all__ = ["effort", "expert", "headend", "maintenance", "provider", "run", "trial"]
