"""The record: the one writer of ends, the one of the audit log, its chains, idempotency, figures.

The lowest of the services: it knows no aggregate, only what a call's row says.
"""
