"""The project's documents, served by the site itself: read, searched, and linked from the pages
they are about.

``library`` knows which pages there are, ``rendering`` makes HTML of one, ``search`` finds sections,
``places`` says which page of the site is explained where, ``views`` shows it all. Nothing here
reads the database.
"""
