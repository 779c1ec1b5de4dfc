"""Found instead of the real one by processes with this folder in PYTHONPATH."""

raise ImportError("litellm is not to be loaded here")
