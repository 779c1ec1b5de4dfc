"""Installers of packages (uv, npm), each a confined child of this process; and the look at what
they have left."""
