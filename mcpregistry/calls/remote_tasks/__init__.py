"""Tasks that servers make of our calls, followed to their end.

Their records are ``services.tasks.remote_tasks``; nothing here knows what a host sees of them.
"""
