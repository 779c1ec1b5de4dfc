"""REST: the same services as every other face, behind one permission table.

It translates and decides nothing: no rules, no writes of its own.
"""
