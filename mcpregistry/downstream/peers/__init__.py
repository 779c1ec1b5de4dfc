"""Calls between the processes of one site: one that has a session's connection makes calls for the
others."""
