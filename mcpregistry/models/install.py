"""Installations of servers' packages: what was asked for, its lock, who approved it, and where it
lies."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from mcpregistry.domain.installs.names import Ecosystem
from mcpregistry.domain.installs.states import InstallState
from mcpregistry.models.sealing import Sealed
from mcpregistry.models.server import Server, slug_validator

FOLDER = "installs"
STATES = [(state.value, state.value.capitalize()) for state in InstallState]
ECOSYSTEMS = [
    (Ecosystem.NPM.value, "npm"),
    (Ecosystem.PYPI.value, "PyPI"),
    (Ecosystem.MCPB.value, _("bundle")),
]


class Install(models.Model):
    """One package in one version with all it needs, in a folder of its own. What may follow on
    what: ``MOVES``."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    server = models.ForeignKey(
        Server, null=True, blank=True, on_delete=models.SET_NULL, related_name="installs"
    )
    slug = models.CharField(
        _("short name"),
        max_length=63,
        blank=True,
        validators=[slug_validator],
        help_text=_("Short name of the new server."),
    )
    ecosystem = models.CharField(_("source"), max_length=10, choices=ECOSYSTEMS)
    package = models.CharField(
        max_length=500, help_text=_("Name of the package. For a bundle, its download address.")
    )
    wanted = models.CharField(
        _("requested version"),
        max_length=64,
        blank=True,
        help_text=_(
            "Exact version. If empty, the latest version is used. For a bundle, its SHA-256."
        ),
    )
    program = models.CharField(
        max_length=100,
        blank=True,
        help_text=_("Name of the program that is the server, if the package contains several."),
    )
    arguments = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        help_text=_("Arguments that are appended to the command of the new server."),
    )
    sealed_env = models.TextField(blank=True, default="", db_default="", editable=False)
    env = Sealed("sealed_env", dict)  # of the server that is made of it
    networks = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        help_text=_(
            "Private networks from which a bundle can be downloaded, taken from its registry."
        ),
    )
    offered = models.TextField(
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text=_(
            "Definitions that the package offered in a sandbox, as JSON, for the comparison with those that "
            "its server offers now."
        ),
    )
    not_offered = models.TextField(
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text=_("Why the definitions could not be compared."),
    )
    state = models.CharField(max_length=12, choices=STATES, default=InstallState.REQUESTED.value)
    state_at = models.DateTimeField()
    lease_until = models.DateTimeField(
        null=True, blank=True, help_text=_("When the lease of the worker expires.")
    )
    worker = models.CharField(max_length=100, blank=True, default="", db_default="", editable=False)
    # starts of this step; also the fence between two workers
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0, editable=False)
    reason = models.TextField(blank=True, help_text=_("Why the last step failed, and what to do."))
    version = models.CharField(max_length=100, blank=True)
    lock = models.TextField(blank=True)
    lock_sha256 = models.CharField(_("SHA-256 of the lock"), max_length=64, blank=True)
    licences = models.JSONField(default=dict, blank=True)
    size = models.BigIntegerField(null=True, blank=True, help_text=_("Size in bytes."))
    files = models.PositiveIntegerField(null=True, blank=True)
    command = models.JSONField(
        default=list, blank=True, help_text=_("Command that starts the program.")
    )
    requested_by = models.CharField(max_length=200)
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    approved_at = models.DateTimeField(null=True, blank=True)
    used_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When a server was last changed to use the package.")
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = _("package")
        verbose_name_plural = _("packages")
        ordering = ["-created_at", "-id"]
        permissions = [("approve_install", "Can approve the installation of packages")]
        indexes = [models.Index(fields=["state", "state_at"], name="install_by_state")]

    def __str__(self) -> str:
        return f"{self.package} {self.version or self.wanted}".strip()

    @property
    def place(self) -> str:
        """The folder of everything that belongs to it."""
        return f"{settings.VAR_DIR}/{FOLDER}/{self.uid}"

    @property
    def folder(self) -> str:
        """Where it is kept once installed. The lock's hash is its name, and so part of the launch
        that people confirm."""
        return f"{self.place}/{self.lock_sha256}"

    def is_started_by(self, command: list[str]) -> bool:
        """Whether the command starts something of its folder."""
        return any(word.startswith(f"{self.folder}/") for word in command)


def find_install_ids(command: list[str]) -> list[uuid.UUID]:
    """The installations whose folders the words of a command name."""
    found = []
    for word in command:
        head, _, rest = word.partition(f"{settings.VAR_DIR}/{FOLDER}/")
        try:
            found += [uuid.UUID(rest.split("/")[0])] if not head and rest else []
        except ValueError:
            continue
    return found
