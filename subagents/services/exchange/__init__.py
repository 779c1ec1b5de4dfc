"""Expert tools in configuration files, in and out.

Registered with ``mcpregistry.services.exchange.sections``; the reading of files is the registry's.
"""
