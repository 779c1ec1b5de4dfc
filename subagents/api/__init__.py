"""REST for expert tools, runs and the background sub-agent. Importing the package adds its
operations to the registry's router."""

from subagents.api import experts, maintenance, runs, trials

__all__ = ["experts", "maintenance", "runs", "trials"]
