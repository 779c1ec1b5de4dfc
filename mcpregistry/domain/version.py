"""The product's version, as hosts and servers are told it; pyproject.toml says the same, and a test
holds it to that."""

VERSION = "0.1.0"
