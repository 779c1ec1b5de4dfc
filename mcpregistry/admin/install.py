"""Pages of installed packages: ask for one, look at its lock, approve it, set a server to it, roll
back, remove."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from mcpregistry.admin.base import ReadOnlyAdmin, Verb, actor
from mcpregistry.admin.confirm_page import ConfirmPage
from mcpregistry.admin.live_parts import LiveAdmin, LivePart
from mcpregistry.admin.name_field import NameField
from mcpregistry.admin.use_bundle import UseBundlePage
from mcpregistry.domain.installs.states import InstallState
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Install, Server
from mcpregistry.models.install import ECOSYSTEMS
from mcpregistry.models.server import Transport
from mcpregistry.services.installs import offers, requests
from mcpregistry.services.registry import bundle_settings

STATE_COLOURS = {
    "installed": "success",
    "failed": "danger",
    "waiting": "warning",
    "installing": "info",
    "resolving": "info",
}
PACKAGES_SHOWN = 300
GOES_ON = {
    InstallState.REQUESTED,
    InstallState.RESOLVING,
    InstallState.APPROVED,
    InstallState.INSTALLING,
}
_DOING = {
    InstallState.REQUESTED: _(
        "The package is waiting for a worker to determine its exact versions."
    ),
    InstallState.RESOLVING: _(
        "A worker determines the exact versions of the package and its dependencies. Nothing is installed."
    ),
    InstallState.APPROVED: _("The package is waiting for a worker to install it."),
    InstallState.INSTALLING: _(
        "A worker installs the package in a sandbox. This takes a few minutes at most."
    ),
}


class InstallRequestForm(forms.ModelForm):  # type: ignore[type-arg]
    """What people ask for: a name, and perhaps a version."""

    ecosystem = forms.ChoiceField(
        label=_("Source"), choices=ECOSYSTEMS, widget=UnfoldAdminSelectWidget
    )
    server = NameField(
        "server",
        Server.objects.filter(transport=Transport.STDIO),
        required=False,
        help_text=_("The server that uses the package. If empty, a new server is created."),
    )

    class Meta:
        model = Install
        fields = ("ecosystem", "package", "wanted", "program", "server", "slug")
        widgets: ClassVar[dict[str, Any]] = dict.fromkeys(
            ("package", "wanted", "program", "slug"), UnfoldAdminTextInputWidget
        )


class ApprovePage(ConfirmPage[Install]):
    """The page behind "Approve and install"."""

    template = "admin/mcpregistry/approve_install.html"
    permissions = ("mcpregistry.approve_install",)

    def title(self, record: Install) -> str:
        return gettext("Approve {package}").format(
            package=show_invisible_characters(str(record), 200)
        )

    def confirm(self, record: Install, *, shown: str, actor: str, user: object) -> str:
        requests.approve_lock(install=record, lock_sha256=shown, actor=actor, user=user)
        return gettext(
            "The package is approved. A worker is installing it. The package is not started yet."
        )

    def facts(self, record: Install) -> dict[str, Any]:
        return lock_facts(record) | {
            "shown": record.lock_sha256,
            "confirmed": record.state != InstallState.WAITING,
        }


def _use(request: HttpRequest, row: Install) -> str:
    server = requests.use_install(install=row, actor=actor(request))
    return gettext(
        "The server {server} now uses this package. It is a draft until you confirm its launch on its page."
    ).format(server=server.slug)


def _roll_back(request: HttpRequest, row: Install) -> str:
    if row.server is None:
        return gettext("No server uses this package.")
    requests.roll_back(server=row.server, actor=actor(request))
    return gettext(
        "The server {server} uses the previous package again. It is a draft until you confirm its launch on its page."
    ).format(server=row.server.slug)


def _remove(request: HttpRequest, row: Install) -> str:
    requests.remove_install(install=row, actor=actor(request))
    return gettext("The package is deleted. Its folder is deleted within a minute.")


def _in_use(row: Install) -> bool:
    return (
        row.state == InstallState.INSTALLED
        and row.server is not None
        and row.is_started_by(row.server.command)
    )


def _usable(row: Install) -> bool:
    return row.state == InstallState.INSTALLED and not _in_use(row)


def _removable(row: Install) -> bool:
    return row.state not in (
        InstallState.REMOVED,
        InstallState.RESOLVING,
        InstallState.INSTALLING,
    ) and not _in_use(row)


@admin.register(Install)
class InstallAdmin(LiveAdmin, ReadOnlyAdmin):
    """Installed packages: asked for by a form, then looked at, approved and used by buttons."""

    form = InstallRequestForm
    list_display = (
        "shown",
        "ecosystem",
        "shown_version",
        "shown_state",
        "shown_server",
        "shown_by",
        "created_at",
    )
    list_filter = ("state", "ecosystem")
    list_select_related = ("server",)
    search_fields = ("package", "server__slug", "slug", "version", "requested_by", "=lock_sha256")
    search_help_text = _("Package, version, server, requester, or SHA-256 of the lock")
    sortable_by = ("created_at",)
    change_form_outer_before_template = "admin/mcpregistry/install.html"
    verbs = (
        Verb(
            "approve",
            _("Approve and install"),
            "approve_install",
            "verified_user",
            _("Check the lock of the package, then approve it."),
            page="mcpregistry_install_approve",
            applies=lambda row: row.state == InstallState.WAITING,
            style="primary",
        ),
        Verb(
            "use",
            _("Use package"),
            "change_server",
            "swap_horiz",
            _(
                "Start the server from this package. The server becomes a draft until you confirm it."
            ),
            _use,
            applies=lambda row: (
                _usable(row)
                and (
                    bundle_settings.find_bundle_option(row) is None
                    or requests.has_running_install(row)
                )
            ),
            style="primary",
        ),
        Verb(
            "configure",
            _("Configure and use package"),
            "change_server",
            "tune",
            _(
                "Enter the settings of the package. The server becomes a draft until you confirm it."
            ),
            page="mcpregistry_install_configure",
            style="primary",
            applies=lambda row: (
                row.state == InstallState.INSTALLED
                and bundle_settings.find_bundle_option(row) is not None
            ),
        ),
        Verb(
            "roll-back",
            _("Restore previous package"),
            "change_server",
            "undo",
            _("Start the server from the previous package again."),
            _roll_back,
            applies=lambda row: (
                _in_use(row) and requests.find_previous_install(row.server) is not None
            ),
        ),
        Verb(
            "remove",
            _("Delete package"),
            "delete_install",
            "delete",
            _("Delete the package and its folder."),
            _remove,
            applies=_removable,
            style="danger",
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Install]:
        return super().get_queryset(request).select_related("server", "approved_by")

    def has_add_permission(self, request: HttpRequest, *_: Any) -> bool:
        return bool(request.user.has_perm("mcpregistry.add_install"))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (
            InstallRequestForm.Meta.fields
            if obj is None
            else ("requested_by", "created_at", "approved_by", "approved_at")
        )

    def save(self, request: HttpRequest, row: Any, form: Any) -> None:
        given = form.cleaned_data
        asked = requests.request_install(
            ecosystem=given["ecosystem"],
            package=given["package"],
            version=given["wanted"],
            program=given["program"],
            server=given["server"],
            slug=given["slug"],
            actor=actor(request),
        )
        row.__dict__.update(asked.__dict__)

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        """To its page, where one can watch it."""
        return HttpResponseRedirect(reverse(f"admin:{self._name('change')}", args=[obj.pk]))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(ApprovePage(self))
        configure = self.admin_site.admin_view(UseBundlePage(self))
        return [
            path("<path:object_id>/approve/", view, name=self._name("approve")),
            path("<path:object_id>/configure/", configure, name=self._name("configure")),
            *super().get_urls(),
        ]

    @display(description=_("package"))
    def shown(self, row: Install) -> str:
        return row.package

    @display(description=_("version"))
    def shown_version(self, row: Install) -> str:
        return row.version or row.wanted or "newest"

    @display(description=_("state"), label=STATE_COLOURS)
    def shown_state(self, row: Install) -> str:
        return row.state

    @display(description=_("server"))
    def shown_server(self, row: Install) -> str:
        return row.server.slug if row.server else row.slug

    @display(description=_("requester"))
    def shown_by(self, row: Install) -> str:
        return show_invisible_characters(row.requested_by, 80)

    def overview(self, request: HttpRequest, row: Install) -> dict[str, Any]:
        return _context(row) | {"live_url": self.live_url(row)}

    def live_part(self, request: HttpRequest, row: Install, name: str) -> LivePart:
        goes_on = row.state in GOES_ON
        return LivePart(
            "admin/mcpregistry/install_state.html", _context(row) | {"ended": not goes_on}, goes_on
        )


def _context(row: Install) -> dict[str, Any]:
    return {
        "asked": row,
        "goes_on": row.state in GOES_ON,
        "doing": _DOING.get(InstallState(row.state), ""),
        "state_colour": STATE_COLOURS.get(row.state, ""),
        "users": requests.list_using_servers(row),
    } | lock_facts(row)


def lock_facts(row: Install) -> dict[str, Any]:
    """The lock's packages with their licences, and how it differs from the installation before."""
    lock = requests.read_lock(row)
    packages = lock.packages if lock else ()
    decided = row.state != InstallState.WAITING  # what is new matters to whoever decides on it
    new = set() if decided else {each.name for each in packages} - requests.list_known_packages(row)
    shown = [
        (each, row.licences.get(each.name, ""), each.name in new)
        for each in packages[:PACKAGES_SHOWN]
    ]
    return {
        "licences": Counter(
            row.licences.get(each.name) or gettext("not known") for each in packages
        ).most_common(),
        "new": None if decided else len(new),
        "command": requests.build_command(row),
        "packages": shown,
        "count": len(packages),
        "more": len(packages) - len(shown),
        "before": requests.find_compared_install(row),
        "changes": requests.list_lock_changes(row)[:PACKAGES_SHOWN],
        "definitions": offers.compare_offers(row) if row.state == InstallState.INSTALLED else None,
    }
