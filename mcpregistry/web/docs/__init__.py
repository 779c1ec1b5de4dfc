"""The project's documents, served by the site itself: read, searched, and linked from the pages
they are about.

``document_list`` knows which pages there are, ``rendering`` makes HTML of one, ``search`` finds
sections, ``page_documents`` knows which document explains which page of the site, ``error_codes``
makes a page for each code, ``views`` shows it all. Nothing here reads the database.
"""
