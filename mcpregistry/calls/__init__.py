"""One call from request to record: the pipeline, and what it needs in one process.

It knows neither doors (``gateway``) nor faces: both hand it a ``CallRequest`` and get a
``CallOutcome``.
"""
