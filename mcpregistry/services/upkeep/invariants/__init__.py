"""What must be true of the records whatever broke; each rule yields the places where it is not.

It only reads, and knows no service: a rule that used one's code could not find its mistakes.
"""
