"""Installations of servers' packages: asked for and resolved, approved, installed, used, rolled
back, removed."""

from mcpregistry.services.installs.requests import resolve

__all__ = ["resolve"]
