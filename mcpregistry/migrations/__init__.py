"""The migrations of the registry. Versions before the first release had others, from which no upgrade leads here."""

FIRST_MIGRATION = ("mcpregistry", "0001_tables")
