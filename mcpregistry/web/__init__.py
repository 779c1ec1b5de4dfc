"""Pages outside the admin, where people decide on held calls and definitions, and Slack's door.

They show and hand on; every decision is a service's.
"""
