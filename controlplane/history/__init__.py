"""What every record of the configuration was before: versions, putting them back, undoing what was
just done.

The versions are django-simple-history's rows, written in the transaction of each change. They are
read here in the words of the document of the whole site, and put back by its import: the same
checks, and what people confirm waits for them anew.
"""
