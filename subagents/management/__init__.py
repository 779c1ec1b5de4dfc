"""Commands of expert tools."""
