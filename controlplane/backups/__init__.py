"""A whole site as one stream of text, whatever its database: what backups, restores and moves are
made of.

``archive`` knows the lines of the stream, ``tables`` the rows of one table, ``schema`` which tables
there are, ``passphrase`` how keys are sealed; ``dumping`` writes a site, ``loading`` makes one.
"""
