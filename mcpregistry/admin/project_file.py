"""Pages of project files: the servers that directories declare, and buttons to confirm them and to
take that back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, path
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from mcpregistry.admin.base import ReadOnlyAdmin, Verb, actor
from mcpregistry.admin.bulk_actions import asks_first
from mcpregistry.admin.confirm_page import ConfirmPage
from mcpregistry.admin.name_filters import by_name
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import ProjectFile
from mcpregistry.models.project_file import SHORT
from mcpregistry.services.exchange import projects

STATE_COLOURS = {
    "confirmed": "success",
    "starting": "info",
    "waiting": "warning",
    "unusable": "danger",
}


class ConfirmProjectPage(ConfirmPage[ProjectFile]):
    """The page behind "Confirm file"."""

    template = "admin/mcpregistry/confirm_project.html"
    permissions = projects.MAY_CONFIRM

    def title(self, record: ProjectFile) -> str:
        return gettext("Confirm the servers of {directory}").format(
            directory=show_invisible_characters(record.directory, 200)
        )

    def facts(self, record: ProjectFile) -> dict[str, Any]:
        return projects.get_shown_facts(record) | {
            "masked": projects.list_full_launches(record),
            "environments": projects.list_full_environments(record),
            "shown": record.content,
            "confirmed": record.content == record.confirmed,
            "agent": record.agent_slug,
            "endpoint": record.endpoint_slug,
        }

    def confirm(self, record: ProjectFile, *, shown: str, actor: str, user: Any) -> str:
        projects.confirm_project(project=record, shown=shown, actor=actor, user=user)
        return gettext(
            "The file is confirmed. Hosts that are running in this directory get the tools in a moment; other"
            " hosts get them when they start."
        )


def _consequences(rows: Sequence[ProjectFile]) -> list[str]:
    return [
        gettext("The servers of {directory} stop, and its file must be confirmed again.").format(
            directory=show_invisible_characters(row.directory, 300)
        )
        for row in rows
    ]


def _take_back(request: HttpRequest, row: ProjectFile) -> str:
    projects.take_back_project(project=row, actor=actor(request))
    return gettext("The confirmation of {directory} is revoked.").format(
        directory=show_invisible_characters(row.directory, 200)
    )


@admin.register(ProjectFile)
class ProjectFileAdmin(ReadOnlyAdmin):
    """The files of directories in which hosts were started with ``runmcp --workspace``."""

    list_display = (
        "directory",
        "state",
        "hash",
        "shown_servers",
        "confirmed_as",
        "confirmed_at",
        "seen_at",
    )
    list_filter = (by_name("agent", "agent_slug"), by_name("endpoint", "endpoint_slug"))
    search_fields = ("directory", "path", "content", "confirmed_as")
    ordering = ("directory",)
    fields = (
        "path",
        "endpoint_slug",
        "agent_slug",
        "seen_at",
        "confirmed_as",
        "confirmed_at",
        "confirmed",
    )
    change_form_outer_before_template = "admin/mcpregistry/project_file.html"
    actions = ("take_back_selected",)
    verbs = (
        Verb(
            "confirm",
            _("Confirm file"),
            "confirm_server",
            "verified_user",
            _("Check what would be started, then confirm it."),
            page="mcpregistry_projectfile_confirm",
            applies=lambda row: row.state == "waiting",
            style="primary",
        ),
        Verb(
            "take-back",
            _("Revoke confirmation"),
            "confirm_server",
            "undo",
            _("Stop the servers of the file until it is confirmed again."),
            _take_back,
            applies=lambda row: bool(row.confirmed),
            asks=lambda row: _consequences([row]),
            style="danger",
        ),
    )

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("mcpregistry.delete_projectfile"))

    def has_take_back_permission(self, request: HttpRequest) -> bool:
        """For the action of the list."""
        return bool(request.user.has_perm("mcpregistry.confirm_server"))

    def remove(self, request: HttpRequest, row: ProjectFile) -> None:
        projects.delete_project(project=row, actor=actor(request), rights=request.user.has_perm)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(ConfirmProjectPage(self))
        return [
            path("<path:object_id>/confirm/", view, name=self._name("confirm")),
            *super().get_urls(),
        ]

    def overview(self, request: HttpRequest, row: ProjectFile) -> dict[str, Any]:
        return {
            "project": projects.get_shown_facts(row)
            | {"state": row.state, "colour": STATE_COLOURS[row.state]}
        }

    @admin.action(description=_("Revoke the selected confirmations"), permissions=["take_back"])
    @asks_first(
        _consequences,
        label=_("Revoke confirmations"),
        icon="undo",
        bound_to=lambda row: row.confirmed,
    )
    def take_back_selected(self, request: HttpRequest, queryset: QuerySet[ProjectFile]) -> None:
        for row in queryset.exclude(confirmed=""):
            self.message_user(request, _take_back(request, row))

    @display(description=_("state"), label=STATE_COLOURS)
    def state(self, row: ProjectFile) -> str:
        return row.state

    @display(description=_("content"), ordering="content")
    def hash(self, row: ProjectFile) -> str:
        return row.content[:SHORT]

    @display(description=_("servers"))
    def shown_servers(self, row: ProjectFile) -> str:
        return show_invisible_characters(
            ", ".join(str(line).partition(":")[0] for line in row.summary), 200
        )
