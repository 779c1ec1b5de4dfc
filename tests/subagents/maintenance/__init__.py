"""The background sub-agent."""
