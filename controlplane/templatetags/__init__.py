"""Template tags of the project: what both shells say alike."""
