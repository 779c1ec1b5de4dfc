"""What notifications say and how they are signed, per channel: values in, text and bytes out.

It does not know who is told, when, or how a message gets there.
"""
