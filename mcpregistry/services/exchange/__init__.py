"""Configuration files in and out of the database.

Formats are ``domain.formats``; what other apps take from files they register here (``sections``).
"""
