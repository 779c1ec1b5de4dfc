"""Hosted agents: ``agents`` configures them, ``cycle`` is one look, ``driver`` keeps looking,
``tools`` are what they have besides the tools of servers.
"""
