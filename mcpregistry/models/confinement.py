"""What a local server may touch and use: the columns of its sandbox and of its limits."""

from __future__ import annotations

from django.core.validators import MaxValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from mcpregistry.domain.servers.sandbox import SandboxPolicy
from mcpregistry.domain.servers.target import Ports, ResourceBounds
from mcpregistry.models.tracked import TrackedModel

# far above what servers use, a browser's among them
MEMORY_MB = 4096
PROCESSES = 256
FILE_MB = 4096  # in a sandbox, where nobody has said otherwise
MOST_MB = 16 * 1024 * 1024
MOST_SECONDS = 31_536_000


class SandboxMode(models.TextChoices):
    """Whether a local server is confined."""

    OFF = "off", _("Off: with the rights of this site")
    ENFORCE = "enforce", _("Enforced")
    STRICT = "strict", _("Strict (bubblewrap)")


class SandboxNetwork(models.TextChoices):
    """What a confined server reaches. Names are resolved with all of it, or by TCP with port 53."""

    ALL = "all", _("Open")
    PORTS = "ports", _("The TCP ports named here")
    NONE = "none", _("None")


class Confined(TrackedModel):
    """The part of a server that its sandbox and its limits are made of. A remote one has them too,
    and they mean nothing."""

    sandbox = models.CharField(
        max_length=10,
        choices=SandboxMode.choices,
        default=SandboxMode.OFF,
        db_default=SandboxMode.OFF,
    )
    sandbox_network = models.CharField(
        _("network"),
        max_length=10,
        choices=SandboxNetwork.choices,
        default=SandboxNetwork.ALL,
        db_default=SandboxNetwork.ALL,
    )
    sandbox_read = models.JSONField(_("may read"), default=list, db_default=[], blank=True)
    sandbox_write = models.JSONField(_("may write"), default=list, db_default=[], blank=True)
    sandbox_connect = models.JSONField(
        _("ports to connect to"), default=list, db_default=[], blank=True
    )
    sandbox_listen = models.JSONField(
        _("ports to listen on"), default=list, db_default=[], blank=True
    )
    # Of its processes, in its sandbox or not.
    max_memory_mb = models.PositiveIntegerField(
        _("memory (MB)"),
        default=MEMORY_MB,
        db_default=MEMORY_MB,
        validators=[MaxValueValidator(MOST_MB)],
        help_text=_(
            "Memory in MB that all processes of the server may use together. If they use more, the server is "
            "stopped. Set to 0 for no limit."
        ),
    )
    max_processes = models.PositiveIntegerField(
        _("processes"),
        default=PROCESSES,
        db_default=PROCESSES,
        validators=[MaxValueValidator(100_000)],
        help_text=_(
            "Maximum number of processes at the same time. If there are more, the server is stopped. Set to 0 "
            "for no limit."
        ),
    )
    max_cpu_seconds = models.PositiveIntegerField(
        _("processor time (seconds)"),
        default=0,
        db_default=0,
        validators=[MaxValueValidator(MOST_SECONDS)],
        help_text=_(
            "CPU seconds that all processes of the server may use in total, counted from its start. If they "
            "use more, the server is stopped. Set to 0 for no limit."
        ),
    )
    max_file_mb = models.PositiveIntegerField(
        _("maximum file size (MB)"),
        default=0,
        db_default=0,
        validators=[MaxValueValidator(MOST_MB)],
        help_text=_(
            "Largest file in MB that the server may write. Larger writes fail. Set to 0 for the default: 4,096 "
            "in the sandbox, otherwise no limit."
        ),
    )
    max_open_files = models.PositiveIntegerField(
        _("open files"),
        default=0,
        db_default=0,
        validators=[MaxValueValidator(1_000_000)],
        help_text=_(
            "Maximum number of open files in each process. Set to 0 to use the limit of this site. Some "
            "servers do not start with fewer than 256."
        ),
    )

    class Meta:
        abstract = True

    def sandbox_policy(self) -> SandboxPolicy:
        """What the server may touch, as people set it."""
        return SandboxPolicy(
            enforced=self.sandbox != SandboxMode.OFF,
            strict=self.sandbox == SandboxMode.STRICT,
            network=self.sandbox_network != SandboxNetwork.NONE,
            ports=self._ports() if self.sandbox_network == SandboxNetwork.PORTS else None,
            read=tuple(self.sandbox_read),
            write=tuple(self.sandbox_write),
        )

    def _ports(self) -> Ports:
        return Ports(connect=tuple(self.sandbox_connect), listen=tuple(self.sandbox_listen))

    def bounds(self) -> ResourceBounds:
        """What a local server's processes may use."""
        return ResourceBounds(
            memory_mb=self.max_memory_mb,
            processes=self.max_processes,
            cpu_seconds=self.max_cpu_seconds,
            file_mb=self.max_file_mb,
            open_files=self.max_open_files,
        )

    def list_raised_bounds(self) -> dict[str, int]:
        """Return the limits of its processes that are wider than their default; 0 is none at
        all."""
        usual = {"max_memory_mb": MEMORY_MB, "max_processes": PROCESSES, "max_file_mb": FILE_MB}
        raised = {
            name: value for name, most in usual.items() if (value := getattr(self, name)) > most
        }
        return raised | {
            name: 0 for name in ("max_memory_mb", "max_processes") if not getattr(self, name)
        }
