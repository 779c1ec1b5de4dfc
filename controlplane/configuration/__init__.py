"""The whole configuration of a site as one document: written, kept in git, compared, read into
another site.

`exportconfig --all` and `importconfig` of such a file. Knows both apps' services, by which
everything is saved; knows no page and no process.
"""
