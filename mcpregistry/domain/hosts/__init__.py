"""The programs that we can be connected to: their files on each system, what has to stand there,
and how it is put in.

``table`` knows the hosts, ``entries`` how each spells an entry, ``programs`` what a program of
one's own needs, ``jsonc`` and ``toml`` change one entry of a file and keep the rest of its text,
``entry_file`` does so for a host.
"""
