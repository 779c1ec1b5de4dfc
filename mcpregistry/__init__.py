"""The registry: servers, tools, agents, policy, calls and their approval.

``docs/explanation/architecture.md`` describes its layers.

It knows neither the project around it (``controlplane``) nor other apps (``subagents``): those
register with it.
"""
