"""One module per ``manage.py`` command."""
