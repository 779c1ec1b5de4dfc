"""The registry: servers, tools, agents, policy, calls and their approval. DESIGN.md maps its
floors.

It knows neither the project around it (``controlplane``) nor other apps (``subagents``): those
register with it.
"""
