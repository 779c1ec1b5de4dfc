"""A model server that answers from a script, in the wire formats of four kinds of providers.

For the demo and for tests: no key, no internet, and the same request always gets the same answer.
"""
