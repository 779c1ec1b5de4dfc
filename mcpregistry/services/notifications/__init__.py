"""Telling people elsewhere: an outbox in the database, its delivery, and what comes back from
Slack.

It listens to held calls' announcements; nobody waits for it, and nothing fails because a receiver
does.
"""
