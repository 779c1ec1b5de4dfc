"""One downstream server as values: how it is launched, what connecting needs, how healthy its
connection is.

Nothing here starts, reaches or stores anything.
"""
