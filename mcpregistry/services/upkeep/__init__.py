"""What clocks and operators run over all records: reaping, retention, the check of the invariants.

Above the aggregates, whose rows it looks at; no aggregate knows it.
"""
