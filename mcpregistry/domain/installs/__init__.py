"""Packages of servers: their names, what a lock says, why one is refused, and what an installer's
own words mean."""
