"""The live configuration: saving rows, reading them as one snapshot, waking workers.

Below every aggregate: what the rows mean is theirs.
"""
