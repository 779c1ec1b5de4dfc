"""Formats of dates for Django's ``FORMAT_MODULE_PATH``."""
