"""What another app adds to the registry: ``subagents`` adds expert tools in this way.

Nothing in ``mcpregistry`` imports such an app. When it is ready, it makes one ``Extension`` and
registers it. The registry asks the registered extensions wherever they can take part. This module
imports no other module of the registry, because apps also register in processes that make no call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from django.contrib.auth.models import User
    from django.db.models import Model

    from mcpregistry.calls.catalog import ToolSource
    from mcpregistry.calls.execution import Dispatcher
    from mcpregistry.calls.sampling import Sampler
    from mcpregistry.domain.snapshot import Snapshot
    from mcpregistry.models import ApprovalRequest, Invocation, Server
    from mcpregistry.models.feed import Told
    from mcpregistry.queries.own_definitions import OwnDefinition
    from mcpregistry.queries.related_calls import Kin
    from mcpregistry.services.configuration.dependents import DependentKind
    from mcpregistry.services.exchange.sections import ExchangeSection

    SamplerMaker = Callable[[Any], Sampler]  # takes the engine
    SourceMaker = Callable[[Any], tuple[ToolSource, Dispatcher]]  # takes the engine


def _find_nothing(*_: Any) -> tuple[Any, ...]:
    return ()


def _find_no_costs(_since: datetime, _until: datetime | None) -> Mapping[str, int]:
    return {}


def _has_not_steered(_request: ApprovalRequest, _user: User) -> bool:
    return False


def _do_nothing(*_: Any) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """One app's parts. Each part that an app leaves out adds nothing."""

    # Calls
    #: sources of tools, which each engine makes once
    tool_sources: Sequence[SourceMaker] = ()
    #: answers what servers ask of models; None if the app does not
    make_sampler: SamplerMaker | None = None
    #: what the calls received in [since, until) cost: hundred-millionths of a dollar, by call id
    sum_call_costs: Callable[[datetime, datetime | None], Mapping[str, int]] = _find_no_costs
    #: when each call was received whose cost may still rise
    list_open_calls: Callable[[], Sequence[datetime]] = _find_nothing
    #: records that belong to a call, for its page
    find_related_records: Callable[[Invocation], Iterable[Kin]] = _find_nothing
    #: whether this person has told the model that makes the call what to do
    has_steered: Callable[[ApprovalRequest, User], bool] = _has_not_steered

    # Configuration
    #: values for ``Snapshot.sections`` by name, read in the transaction of the snapshot
    snapshot_sections: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    #: the app's part of configuration files; called for each import or export
    make_file_section: Callable[[], ExchangeSection] | None = None
    #: tools that no server offers
    list_own_definitions: Callable[[Snapshot], Iterable[OwnDefinition]] = _find_nothing
    #: columns that conditions of rules read, with their names in conditions
    rule_inputs: Mapping[type[Model], Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    #: records that only people with the right to delete them can delete with another record
    dependent_kinds: Sequence[DependentKind] = ()

    # Changes
    #: tables whose changes raise the revision of the configuration, with the columns whose changes
    #: do not
    watched_tables: Mapping[type[Model], frozenset[str]] = field(default_factory=dict)
    #: other tables whose changes the change feed reports
    reported_tables: Mapping[type[Model], Told] = field(default_factory=dict)
    #: a server offers these tools for the first time or again; called in the same transaction
    handle_offered_tools: Callable[[Server, Sequence[str]], None] = _do_nothing
    #: a host gives up the task of the call with this id; called in the same transaction
    handle_cancelled_task: Callable[[str], None] = _do_nothing


_registered: list[Extension] = []


def register_extension(extension: Extension) -> None:
    """Add an app's parts to this process. The app calls it once, in ``AppConfig.ready``."""
    _registered.append(extension)


def list_extensions() -> Sequence[Extension]:
    """All that are registered, in the order in which their apps are installed."""
    return _registered


def make_tool_sources(engine: object) -> list[tuple[ToolSource, Dispatcher]]:
    """The sources of all extensions, made for this engine."""
    return [make(engine) for extension in _registered for make in extension.tool_sources]


def make_sampler(engine: object) -> Sampler | None:
    """The sampler of the first extension that has one, made for this engine."""
    makers = [extension.make_sampler for extension in _registered]
    return next((make(engine) for make in makers if make is not None), None)
