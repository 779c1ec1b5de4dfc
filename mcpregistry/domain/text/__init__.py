"""Text and JSON: canonical form and hashes, safe display of foreign text, finding and removing
secrets.

The lowest of the ground: it knows no other package.
"""
