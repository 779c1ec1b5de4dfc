"""Tasks of the protocol, on both sides: hosts' handles, servers' tasks that we follow, and long
work of our own.

Records only: following is ``calls.remote_tasks``, what hosts see is ``gateway.tasks``. Celery's
jobs are elsewhere.
"""
