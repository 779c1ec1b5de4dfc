"""What stands in the document: each kind of row with its section, its name there, and what of it is
configuration.

The columns are the models' own, but for those that a kind names as left out, so a new column cannot
be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.db.models import NOT_PROVIDED, Field, Model, Q, QuerySet

from controlplane.configuration.document_values import Entry, Secrets, read, serialize_value
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.formats import text
from mcpregistry.domain.servers.redacted_env import ADDRESSES
from mcpregistry.models import (
    Agent,
    Budget,
    Channel,
    Configuration,
    Credential,
    Endpoint,
    EnergyPool,
    Grant,
    PolicyRule,
    RegistrySource,
    Server,
    SlackIdentity,
    Tool,
    Workspace,
)
from mcpregistry.models.registry import READ
from mcpregistry.models.sealing import find_sealed_columns
from mcpregistry.models.server import Lifecycle
from mcpregistry.models.signed_books import HEAD_COLUMNS
from mcpregistry.services.access.roles import ROLES
from mcpregistry.services.configuration.saving import DEPTH
from subagents.models import EffortAgent, ExpertTool, Headend, LanguageModel, Provider

_MADE = {"id", "uid", "created_at", "updated_at", "created_by"}
NAMES: dict[type[Model], Callable[[Any], str]] = {
    Server: lambda row: row.slug,
    Tool: lambda row: f"{row.server.slug}::{row.key}",
    Agent: lambda row: row.slug,
    EnergyPool: lambda row: row.slug,
    Budget: lambda row: row.slug,
    RegistrySource: lambda row: row.slug,
    Endpoint: lambda row: row.slug,
    Group: lambda row: row.name,
    Permission: lambda row: f"{row.content_type.app_label}.{row.codename}",
    User: lambda row: row.username,
    PolicyRule: lambda row: row.name,
    Provider: lambda row: row.slug,
    LanguageModel: lambda row: f"{row.provider.slug}/{row.name}",
    ExpertTool: lambda row: row.name,
    EffortAgent: lambda row: row.expert.name,
    Headend: lambda row: row.slug,
    Credential: lambda row: row.name,
    Channel: lambda row: row.name,
    Workspace: lambda row: row.directory,
    SlackIdentity: lambda row: f"{row.team}/{row.member}",
    Configuration: lambda row: "site",
}
WITH: dict[type[Model], str] = {
    Tool: "server",
    LanguageModel: "provider",
    EffortAgent: "expert",
    Permission: "content_type",
}  # what their names need


@dataclass(frozen=True)
class RecordKind:
    """``more`` says of a row what no column of it says. Rows without a name of their own are told
    by all they say."""

    section: str
    model: type[Model]
    left_out: frozenset[str] = frozenset()
    more: Callable[[Any], Entry] = lambda row: {}
    words: frozenset[str] = frozenset()  # that ``more`` may say
    rows: Callable[[], QuerySet[Any]] | None = None
    inside: frozenset[str] = field(default=frozenset())  # columns that the name says already

    @property
    def named(self) -> bool:
        return self.model in NAMES

    def fields(self) -> list[Field[Any, Any]]:
        """The columns that the document has, in the model's order; relations and lists of rows
        among them."""
        skipped = {*_MADE, *self.left_out, *self.inside, *find_sealed_columns(self.model)}
        columns = [*self.model._meta.concrete_fields, *self.model._meta.local_many_to_many]
        return [column for column in columns if column.name not in skipped]

    def hiding(self) -> set[str]:
        """The words whose values may be references to secrets; elsewhere what looks like one is a
        value as any other."""
        return {"command", *ADDRESSES} & {each.name for each in self.fields()} | {
            *find_sealed_columns(self.model).values()
        }

    def list_keys(self) -> set[str]:
        """Every word that an entry may have."""
        return (
            {each.name for each in self.fields()}
            | {*find_sealed_columns(self.model).values()}
            | self.words
        )

    def all(self) -> list[tuple[str, Any]]:
        """Every row with its name, sorted."""
        rows = (self.rows() if self.rows else self.model._default_manager.all()).select_related(
            *([WITH[self.model]] if self.model in WITH else [])
        )
        return sorted(((self.name(row), row) for row in rows), key=lambda each: each[0])

    def name(self, row: Any) -> str:
        """Of a row, in the document; in the order of their making where they have none."""
        return NAMES[self.model](row) if self.named else f"{row.pk:020}"

    def entry(self, name: str, row: Any, secrets: Secrets) -> Entry:
        """All that is not as a new row has it."""
        said = {
            column.name: _write_column(column, row)
            for column in self.fields()
            if not _is_default(column, row)
        }
        for held in find_sealed_columns(self.model).values():
            if value := getattr(row, held):
                said[held] = secrets.replace_secrets(value, f"{self.section}/{name}/{held}")
        place = f"{self.section}/{name}"
        if "command" in said:
            said["command"] = secrets.command(said["command"], f"{place}/command")
        for column in ADDRESSES:
            if column in said:
                said[column] = secrets.address(said[column], f"{place}/{column}")
        return said | self.more(row)

    def normalize_entry(self, entry: Entry) -> Entry:
        """What a file says in the way in which ``entry`` says it, without what a new row has
        anyway: so that a time, a number or an order that a person wrote otherwise is no change.
        Raises ConfigInvalid for what no column takes."""
        columns = {column.name: column for column in self.fields()}
        told = {
            word: _normalize_value(columns.get(word), word, value) for word, value in entry.items()
        }
        return {
            word: value
            for word, value in told.items()
            if not _is_new(columns.get(word), word, value)
        }


def _normalize_value(column: Field[Any, Any] | None, word: str, value: Any) -> Any:
    if word == "permissions" or (column is not None and column.many_to_many):
        return (
            sorted(value)
            if isinstance(value, list) and all(isinstance(each, str) for each in value)
            else value
        )
    return value if column is None or column.is_relation else serialize_value(read(column, value))


def _is_new(column: Field[Any, Any] | None, word: str, value: Any) -> bool:
    """Whether a row that does not say the word means the same by that."""
    if column is None:
        return value is True if word == "enabled" else not value
    if column.many_to_many or column.is_relation:
        return value is None or value == []
    return value == serialize_value(
        None if column.default is NOT_PROVIDED and column.null else column.get_default()
    )


def _write_column(column: Field[Any, Any], row: Any) -> Any:
    related: Any = column.related_model
    if column.many_to_many:
        return sorted(
            NAMES[related](each) for each in _join_related(getattr(row, column.name).all(), related)
        )
    if column.is_relation:
        return NAMES[related](getattr(row, column.name))
    return serialize_value(column.value_from_object(row))


def _join_related(rows: QuerySet[Any], model: type[Model]) -> Iterable[Any]:
    return rows.select_related(WITH[model]) if model in WITH else rows


def _is_default(column: Field[Any, Any], row: Any) -> bool:
    if column.many_to_many:
        return not getattr(row, column.name).exists()
    value = getattr(row, column.attname)
    if column.is_relation:
        return value is None
    default = None if column.default is NOT_PROVIDED and column.null else column.get_default()
    return bool(value == default)


def lookup(model: type[Model]) -> dict[str, Any]:
    """The rows of a model by their names in the document."""
    rows = model._default_manager.select_related(*([WITH[model]] if model in WITH else []))
    return {NAMES[model](row): row for row in rows}


# What no column says


def _of_server(row: Server) -> Entry:
    said: Entry = {"confirmed": True} if row.launch_confirmed else {}
    return said | ({"enabled": False} if row.lifecycle == Lifecycle.DISABLED else {})


def _of_tool(row: Tool) -> Entry:
    definition = row.pinned or row.latest
    if definition is None:
        return {}
    # as its text where no file could hold the values: NUL, lone surrogates, hundreds of levels
    data = definition.data
    said = {"definition": data if text.is_readable_value(data, below=DEPTH) else definition.body}
    return said | {"approved": True} if row.pinned else said


def _of_provider(row: Provider) -> Entry:
    return {"confirmed": True} if row.leaves_the_site and row.draft_problem() is None else {}


def _of_expert(row: ExpertTool) -> Entry:
    return {
        "models": [
            NAMES[LanguageModel](target.model)
            for target in row.ordered_targets.select_related("model__provider")
        ]
    }


def _of_role(row: Group) -> Entry:
    return {
        "permissions": sorted(
            f"{p.content_type.app_label}.{p.codename}"
            for p in row.permissions.select_related("content_type")
        )
    }


def _query_roles() -> QuerySet[Group]:
    """Those that people have made; the others are the release's own, and each migration sets what
    they may."""
    return Group.objects.exclude(name__in=ROLES)


def _query_tools() -> QuerySet[Tool]:
    """Those that are approved, or that a grant or rule names; what else waits for a decision is no
    configuration."""
    named = [
        model.objects.filter(tool__isnull=False).values("tool") for model in (Grant, PolicyRule)
    ]
    wanted = Q(pinned__isnull=False) | Q(pk__in=named[0]) | Q(pk__in=named[1])
    return Tool.offers.filter(wanted, latest__isnull=False).select_related(
        "pinned", "latest", "server"
    )


_SEEN = frozenset(
    {
        "last_ok_at",
        "last_error",
        "last_error_code",
        "last_error_at",
        "consecutive_failures",
        "unavailable_since",
        "next_check_at",
        "check_until",
        "check_by",
        "protocol_era",
        "server_info",
        "server_instructions",
        "refreshed_at",
        "left_out",
        "last_connected_at",
        "features",
        "revision",
        "launch_by",
        "confirmed_launch",
        "confirmed_by",
        "confirmed_at",
        "lifecycle",
        "source",
    }
)
_TESTED = frozenset(
    {
        "test_asked_at",
        "tested_at",
        "test_model",
        "test_answer",
        "test_error",
        "test_ms",
        "confirmed_destination",
        "confirmed_by",
        "confirmed_at",
    }
)

_DRIVEN = frozenset(
    {
        "worker",
        "fence",
        "lease_until",
        "wake_at",
        "idle_since",
        "finished_at",
        "focus",
        "awaits_level",
    }
)

# In the order in which they can be made: what is named comes before what names it. Permits are not
# exported: each is bound to a rule by a hash over database keys, so no call of another site could
# match.
KINDS = (
    RecordKind(
        "roles",
        Group,
        frozenset({"permissions"}),
        _of_role,
        frozenset({"permissions"}),
        _query_roles,
        frozenset({"name"}),
    ),
    RecordKind("configuration", Configuration, frozenset({"revision", "complete_for"})),
    RecordKind("credentials", Credential, inside=frozenset({"name"})),
    RecordKind(
        "servers",
        Server,
        _SEEN,
        _of_server,
        frozenset({"confirmed", "enabled"}),
        inside=frozenset({"slug"}),
    ),
    RecordKind(
        "tools",
        Tool,
        frozenset({"pinned", "latest", "present", "first_seen_at", "last_seen_at"}),
        _of_tool,
        frozenset({"definition", "approved"}),
        _query_tools,
        frozenset({"server", "kind", "name"}),
    ),
    RecordKind(
        "energy_pools",
        EnergyPool,
        frozenset({"level", "level_at", *HEAD_COLUMNS}),
        inside=frozenset({"slug"}),
    ),
    RecordKind("registries", RegistrySource, frozenset(READ), inside=frozenset({"slug"})),
    RecordKind("agents", Agent, inside=frozenset({"slug"})),
    RecordKind("endpoints", Endpoint, inside=frozenset({"slug"})),
    RecordKind("budgets", Budget, frozenset(HEAD_COLUMNS), inside=frozenset({"slug"})),
    RecordKind("workspaces", Workspace, inside=frozenset({"directory"})),
    RecordKind(
        "providers",
        Provider,
        _TESTED,
        _of_provider,
        frozenset({"confirmed"}),
        inside=frozenset({"slug"}),
    ),
    RecordKind("models", LanguageModel, inside=frozenset({"provider", "name"})),
    RecordKind(
        "experts",
        ExpertTool,
        frozenset({"targets"}),
        _of_expert,
        frozenset({"models"}),
        inside=frozenset({"name"}),
    ),
    RecordKind("effort_agents", EffortAgent, _DRIVEN, inside=frozenset({"expert"})),
    RecordKind("headends", Headend, inside=frozenset({"slug"})),
    RecordKind("rules", PolicyRule, inside=frozenset({"name"})),
    RecordKind("grants", Grant),
    RecordKind("channels", Channel, inside=frozenset({"name"})),
    RecordKind("slack_people", SlackIdentity, inside=frozenset({"team", "member"})),
)
_BY_SECTION: Mapping[str, RecordKind] = {kind.section: kind for kind in KINDS}


def kind_of(section: str) -> RecordKind:
    """Raises ConfigInvalid for a section that there is not."""
    if section not in _BY_SECTION:
        raise ConfigInvalid(
            f'"{section!s:.100}" is not a valid section.',
            remedy=f"Valid sections: {', '.join(_BY_SECTION)}. A newer release may have more.",
        )
    return _BY_SECTION[section]


def find_permissions(names: Iterable[str]) -> list[Permission]:
    """Raises ConfigInvalid for one that there is not."""
    wanted = [name.partition(".") for name in names]
    codes = {code for _, _, code in wanted}
    there = Permission.objects.filter(codename__in=codes).select_related("content_type")
    found = {f"{each.content_type.app_label}.{each.codename}": each for each in there}
    if unknown := [name for name in names if name not in found]:
        raise ConfigInvalid(
            error_texts.say_not_found("permission", f"{unknown[0]!s:.100}"),
            remedy="Remove this permission from the role, or import the file with a release that has the permission.",
        )
    return [found[name] for name in names]
