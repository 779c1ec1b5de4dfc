"""MCP registries that this site reads, and the copy of what they list."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from simple_history.models import HistoricalRecords

from mcpregistry.domain.registry.entries import Status
from mcpregistry.models.sealing import Sealed
from mcpregistry.models.server import Server, slug_validator
from mcpregistry.models.tracked import TrackedModel

OFFERED = (Status.ACTIVE, Status.DEPRECATED)  # what was not taken back
# What reading it sets.
READ = (
    "watermark",
    "full_at",
    "synced_at",
    "asked_at",
    "tried_at",
    "lease_until",
    "pages",
    "skipped",
    "skipped_why",
    "error",
)


class RegistrySources(models.QuerySet["RegistrySource"]):
    """Registries as pages and programs look at them."""

    def with_offer_counts(self) -> RegistrySources:
        """Each with ``offers``: how many servers it lists that can be added."""
        offered = Q(entries__is_latest=True, entries__status__in=OFFERED)
        return self.annotate(offers=models.Count("entries", filter=offered))


class RegistrySource(TrackedModel):
    """One registry. Nothing is read of it before somebody says so, or has it read by the clock."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    slug = models.CharField(
        _("short name"), max_length=63, unique=True, validators=[slug_validator]
    )
    base_url = models.CharField(
        _("address"),
        max_length=500,
        help_text=_(
            "Address of the registry without /v0.1, for example https://registry.modelcontextprotocol.io."
        ),
    )
    allowed_networks = models.JSONField(
        default=list,
        blank=True,
        help_text=_(
            'Private networks that may contain the registry and its bundles, for example ["10.0.0.0/8"]. If '
            "empty, only public addresses are allowed."
        ),
    )
    sealed_token = models.TextField(blank=True, default="", db_default="", editable=False)
    token = Sealed("sealed_token", str)  # of a private registry; it goes to ``base_url`` alone
    by_clock = models.BooleanField(
        _("hourly sync"),
        default=False,
        help_text=_(
            "If enabled, the registry is read every hour. If disabled, it is read only when you press Sync registry."
        ),
    )
    disable_deleted = models.BooleanField(
        _("disable deleted servers"),
        default=True,
        help_text=_(
            "If enabled, the site disables the servers of an entry when the registry deletes the entry, for "
            "example because of malware. These are the servers that were added from the entry or run its "
            "package."
        ),
    )
    propose_versions = models.BooleanField(
        _("propose new versions"),
        default=False,
        db_default=False,
        help_text=_(
            "If enabled, the site prepares a lock when the registry lists a newer version of an installed "
            "package. The lock then waits for approval."
        ),
    )
    watermark = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text=_("Time of the newest change that the registry has reported, by its own clock."),
    )
    full_at = models.DateTimeField(_("last complete sync"), null=True, blank=True, editable=False)
    synced_at = models.DateTimeField(_("last sync"), null=True, blank=True, editable=False)
    asked_at = models.DateTimeField(null=True, blank=True, editable=False)
    tried_at = models.DateTimeField(null=True, blank=True, editable=False)
    lease_until = models.DateTimeField(null=True, blank=True, editable=False)
    pages = models.PositiveIntegerField(
        default=0,
        editable=False,
        help_text=_("Number of pages that the last or current sync has read."),
    )
    skipped = models.PositiveIntegerField(
        default=0, editable=False, help_text=_("Number of entries that could not be used.")
    )
    skipped_why = models.CharField(max_length=200, blank=True, editable=False)
    error = models.TextField(blank=True, editable=False)

    objects = RegistrySources.as_manager()
    history = HistoricalRecords(excluded_fields=[*READ, "uid", "sealed_token"])

    class Meta:
        verbose_name = _("registry")
        verbose_name_plural = _("registries")
        ordering = ["slug"]
        permissions = [("sync_registrysource", "Can sync registries")]

    def __str__(self) -> str:
        return self.slug


class RegistryEntries(models.QuerySet["RegistryEntry"]):
    """Entries as people and the sub-agent look for them."""

    def filter_offered(self) -> RegistryEntries:
        """The newest version of each server that the registry has not taken back."""
        return self.filter(is_latest=True, status__in=OFFERED)

    def matching(self, query: str) -> RegistryEntries:
        """Those in which every word of the query stands, in name, title or description."""
        found = self
        for word in query.split()[:10]:
            found = found.filter(
                Q(name__icontains=word) | Q(title__icontains=word) | Q(description__icontains=word)
            )
        return found


class RegistryEntry(models.Model):
    """One version of one server, as a registry lists it. ``document`` is its server.json, and not
    to be trusted."""

    source = models.ForeignKey(RegistrySource, on_delete=models.CASCADE, related_name="entries")
    name = models.CharField(max_length=200)
    version = models.CharField(max_length=255)
    title = models.CharField(max_length=200, blank=True)
    description = models.TextField(blank=True)
    kinds = models.CharField(
        max_length=200,
        blank=True,
        help_text=_("Kinds of install options, for example npm, pypi, oci, mcpb and remote."),
    )
    status = models.CharField(max_length=10, choices=[(each.value, each.value) for each in Status])
    status_message = models.CharField(max_length=500, blank=True)
    is_latest = models.BooleanField(default=False)
    document = models.TextField()
    sha256 = models.CharField(max_length=64)
    altered_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text=_(
            "When the site found that the content of the entry had changed without a new version."
        ),
    )
    published_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField(null=True, blank=True)
    seen_at = models.DateTimeField()
    servers = models.ManyToManyField(
        Server,
        blank=True,
        related_name="+",
        help_text=_("Servers of this site that were created from the entry and use its address."),
    )

    objects = RegistryEntries.as_manager()

    class Meta:
        verbose_name_plural = _("registry entries")
        ordering = ["name", "-published_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["source", "name", "version"], name="registry_entry_once"
            ),
        ]
        indexes = [
            models.Index(fields=["name"], name="registry_offered", condition=Q(is_latest=True)),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"
