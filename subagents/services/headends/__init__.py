"""Headends: what is configured, what processes know of it, and who has a place in their queues."""
