"""REST for expert tools and runs. Importing the package adds its operations to the registry's router."""

from subagents.api import experts, runs

__all__ = ["experts", "runs"]
