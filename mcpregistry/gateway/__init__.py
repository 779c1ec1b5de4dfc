"""MCP towards hosts, over stdio and HTTP: doors that translate; decisions are made in ``calls``."""
