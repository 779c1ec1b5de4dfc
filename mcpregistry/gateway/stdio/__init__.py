"""The stdio door: what ``manage.py runmcp`` runs, from the first byte on.

``preload`` and ``kept_answers`` are imported before Django and must not import it, nor the SDK.
"""
