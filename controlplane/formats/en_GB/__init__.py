"""Formats of dates in British English, the site's only language."""
