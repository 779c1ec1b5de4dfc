"""The site's copy of public MCP registries: which are read, how, and what becomes of servers whose
entry was taken back."""
