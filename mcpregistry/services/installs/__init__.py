"""Installations of servers' packages: asked for and resolved, approved, installed, used, rolled
back, removed."""

from mcpregistry.services.installs.requests import request_install

__all__ = ["request_install"]
