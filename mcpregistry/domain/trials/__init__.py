"""Trials of servers before they go live: arguments to try tools with, what findings mean, what two
trials differ in."""
