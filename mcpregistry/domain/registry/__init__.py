"""What public MCP registries list, read from their documents. Pure; knows no network and no
rows."""
