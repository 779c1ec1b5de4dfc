"""Connecting hosts: what their entries say of this site, their files on this machine, and what
stands there today."""
