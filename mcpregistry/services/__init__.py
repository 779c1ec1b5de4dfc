"""Verbs: what can be done to records. Keyword-only, audited, in one transaction each; effects
follow its commit."""
