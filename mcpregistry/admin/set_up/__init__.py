"""Setting a server up, in five steps from what a README says to its first call; and whole files,
imported.

The first page reads what is pasted; the others belong to a server, and which of them comes next is
read off its rows (``queries.setup_state``). So the way can be left anywhere and taken up again,
also by somebody else.
"""

from __future__ import annotations

from django.urls import URLPattern, path

from mcpregistry.admin.base import RecordAdmin
from mcpregistry.admin.set_up.import_page import ImportPage
from mcpregistry.admin.set_up.paste_page import PastePage
from mcpregistry.admin.set_up.step_pages import LivePage, StepPage


def pages(admin: RecordAdmin) -> list[URLPattern]:
    """The addresses of the pages, below those of servers."""
    page = admin.admin_site.admin_view
    return [
        path("set-up/", page(PastePage(admin)), name="mcpregistry_server_set_up"),
        path("import/", page(ImportPage(admin)), name="mcpregistry_server_import"),
        path("<int:pk>/set-up/", page(StepPage(admin)), name="mcpregistry_server_set_up_step"),
        path("<int:pk>/set-up/live/", page(LivePage(admin)), name="mcpregistry_server_set_up_live"),
    ]
