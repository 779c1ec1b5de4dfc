"""Headends: their configuration and their queues."""
