"""Held calls in one process: asking, waiting in the host's way, looking once more, running once.

What a request is and who may decide is in ``services.approvals``; nothing here knows the pipeline
or the engine.
"""
