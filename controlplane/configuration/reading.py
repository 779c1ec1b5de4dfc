"""A document of a whole site, read into this one: what differs is saved by the services, all of it or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import Model

from controlplane.configuration.kinds import KINDS, Kind, kind_of, lookup, permissions
from controlplane.configuration.values import Entry, Secrets, read, without_unknown
from controlplane.configuration.writing import VERSION, WHOLE
from mcpregistry.domain.errors import ConfigInvalid, SlipsnisseError
from mcpregistry.domain.policy.decision import Outcome
from mcpregistry.domain.text.canonical import stored
from mcpregistry.models import Agent, Configuration, Endpoint, Permit, PolicyRule, Server, Tool
from mcpregistry.models.sealing import sealed
from mcpregistry.services.access import agents, credentials, grants
from mcpregistry.services.access.roles import approvers
from mcpregistry.services.configuration import site as settings_of
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.notifications import outbox
from mcpregistry.services.policy import rules
from mcpregistry.services.records import audit
from mcpregistry.services.servers import lifecycle
from subagents.models import LanguageModel, Provider
from subagents.services import experts, providers

ACTOR = "importconfig"
_DECIDED = ("confirmed", "approved")  # counts only when whoever imports says so


@dataclass
class Report:
    """``made`` and ``changed`` as section/name; ``kept``: rows that are here and not in the file."""

    made: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Undo(Exception):
    """Nothing of a trial stays."""


def take(document: Mapping[str, Any], given: Mapping[str, Any], *, confirm: bool, save: bool = True,
         after: Callable[[], None] = lambda: None) -> Report:  # fmt: skip
    """Make this site what the document says; rows that it does not name stay as they are.

    ``given``: secrets by their names; of others the ones that are here stay. ``confirm``: launches, destinations and
    definitions that were confirmed there are so here too, else each waits for a person. ``after`` may look at the result
    before it counts; without ``save`` it never does. Raises ConfigInvalid with the place of what is wrong.
    """
    _check_head(document)
    taking = _Taking(given, confirm)
    try:
        with transaction.atomic(), audit.together():
            for kind in KINDS:
                taking.section(kind, document.get(kind.section))
            taking.tell()
            after()
            if not save:
                raise _Undo
    except _Undo:
        pass
    return taking.report


def _check_head(document: Mapping[str, Any]) -> None:
    if document.get("slipsnisse") != WHOLE:
        raise ConfigInvalid("This is no document of a whole site.", remedy="Name one that `exportconfig --all` made.")
    version = document.get("version")
    if version != VERSION:
        raise ConfigInvalid(f"The document is of version {version!r:.20}.", remedy="Import it with a newer release.")
    for section in document.keys() - {"slipsnisse", "version"}:
        kind_of(section)


class _Taking:
    def __init__(self, given: Mapping[str, Any], confirm: bool) -> None:
        self.report = Report()
        self._given, self.confirm = given, confirm
        self._rows: dict[type[Model], dict[str, Any]] = {}
        self._missing: list[str] = []

    def section(self, kind: Kind, said: Any) -> None:
        """What a file says of one kind; of a setting that it does not have, nothing."""
        if not kind.named:
            self._unnamed(kind, [] if said is None else said, dict(kind.all()))
            return
        if said is None and kind.model is Configuration:
            return
        said, here = {} if said is None else said, self._all(kind.model)
        entries = {"site": said} if kind.model is Configuration else said
        if not isinstance(entries, dict):
            raise ConfigInvalid(f"{kind.section}: not an object of entries by name.", remedy="Correct it in the file.")
        for name, entry in entries.items():
            with _at(f"{kind.section}/{name}"):
                self._named(kind, name, _checked(kind, entry), here.get(name))
        shown = dict(kind.all())
        self.report.kept += [f"{kind.section}/{name}" for name in shown if name not in entries]

    def tell(self) -> None:
        """Who nobody can ask, and what the audit log says."""
        if self._all(Agent) and not approvers(None) and self._asks():
            self.report.notes.append("Rules ask, and nobody may approve calls yet: give somebody the role approver.")
        report = self.report
        if report.made or report.changed:
            audit.record(kind="site.imported", actor=ACTOR, subject="site", made=report.made[:500],
                         changed=report.changed[:500], confirmed=self.confirm)  # fmt: skip

    def _asks(self) -> bool:
        return PolicyRule.objects.filter(enabled=True, outcome=Outcome.ASK.value).exists()

    def _all(self, model: type[Model]) -> dict[str, Any]:
        if model not in self._rows:
            self._rows[model] = lookup(model)
        return self._rows[model]

    def _unnamed(self, kind: Kind, said: Any, here: dict[str, Any]) -> None:
        if not isinstance(said, list):
            raise ConfigInvalid(f"{kind.section}: not a list.", remedy="Correct it in the file.")
        there = [stored(kind.entry(name, row, Secrets())) for name, row in here.items()]
        for number, entry in enumerate(said, 1):
            place = f"{kind.section}/{number}"
            with _at(place):
                text = stored(_checked(kind, entry))
                if text in there:
                    there.remove(text)
                    continue
                row = kind.model()
                self._fill(kind, row, entry)
                if _SAVERS[kind.section](self, row, entry):
                    self.report.made.append(place)
        self.report.kept += [f"{kind.section}: one more" for _ in there]

    def _named(self, kind: Kind, name: str, entry: Entry, row: Any) -> None:
        if row is not None and self._is_as(kind, name, entry, row):
            return
        new = row is None
        if new:
            row = self._new(kind, name)
        self._missing = []
        self._fill(kind, row, entry)
        self._unseal(kind, name, row, entry)
        done = _SAVERS[kind.section](self, row, entry)
        if done is None:
            return
        self._all(kind.model)[name] = done
        if self._missing:
            self.report.notes.append(f"{kind.section}/{name}: enter what nobody gave: {', '.join(self._missing)}.")
        (self.report.made if new else self.report.changed).append(f"{kind.section}/{name}")

    def _new(self, kind: Kind, name: str) -> Any:
        if kind.model is Tool:
            server, _, tool = name.partition("::")
            return Tool(server=self._found(Server, server), name=tool)
        if kind.model is LanguageModel:
            provider, _, model = name.partition("/")
            return LanguageModel(provider=self._found(Provider, provider), name=model)
        if kind.section == "slack_people":
            team, _, member = name.partition("/")
            return kind.model(team=team, member=member)
        (column,) = kind.inside
        return kind.model(**{column: name})

    def _is_as(self, kind: Kind, name: str, entry: Entry, row: Any) -> bool:
        here = Secrets()
        have = kind.entry(name, row, here)
        known = Secrets({**here.found, **self._given})
        mine = {word: Secrets(here.found).shown(said) for word, said in have.items()}
        theirs = {word: known.shown(said) for word, said in entry.items()}
        if not self.confirm:
            for word in _DECIDED:
                mine.pop(word, None), theirs.pop(word, None)
        return stored(mine) == stored(theirs)

    def _fill(self, kind: Kind, row: Any, entry: Entry) -> None:
        for column in kind.fields():
            if column.many_to_many:
                continue
            value = entry.get(column.name, column.get_default())
            if column.is_relation:
                related: Any = column.related_model
                value = None if value is None else self._related(related, value)
                setattr(row, column.name, value)
            else:
                setattr(row, column.name, read(column, value))

    def _related(self, model: type[Model], name: str) -> Any:
        if model is User and name not in self._all(User):
            self.report.notes.append(f"There is no account '{name}'; left empty.")
            return None
        return self._found(model, name)

    def _found(self, model: type[Model], name: Any) -> Any:
        if not isinstance(name, str) or name not in self._all(model):
            what = model._meta.verbose_name
            raise ConfigInvalid(
                f"There is no {what} '{name!s:.100}'.", remedy="Add it to the file, or correct the name."
            )
        return self._all(model)[name]

    def many(self, model: type[Model], names: Any) -> list[Any]:
        """The rows of these names."""
        return [self._found(model, name) for name in names or []]

    def _unseal(self, kind: Kind, name: str, row: Any, entry: Entry) -> None:
        here = Secrets()
        if row.pk:
            kind.entry(name, row, here)
        known = Secrets({**here.found, **self._given})
        for held in sealed(kind.model).values():
            value, missing = without_unknown(known.shown(entry.get(held, {})))
            self._missing += missing
            setattr(row, held, value)

    def confirms(self, entry: Entry) -> bool:
        """Whether what was decided there counts here: only with every secret that it was decided with."""
        return self.confirm and not self._missing and any(entry.get(word) is True for word in _DECIDED)

    @property
    def missing(self) -> list[str]:
        """The secrets of this row that nobody gave."""
        return self._missing

    def note(self, text: str) -> None:
        """Tell whoever imports."""
        self.report.notes.append(text)


@contextmanager
def _at(place: str) -> Iterator[None]:
    try:
        yield
    except SlipsnisseError as error:
        raise ConfigInvalid(f"{place}: {error.message}", remedy=error.remedy) from error


def _checked(kind: Kind, entry: Any) -> Entry:
    if not isinstance(entry, dict):
        raise ConfigInvalid("not an object.", remedy="Correct it in the file.")
    if unknown := sorted(entry.keys() - kind.known()):
        raise ConfigInvalid(
            f"the word '{unknown[0]}' is not known.", remedy=f"Known are {', '.join(sorted(kind.known()))}."
        )
    return entry


# How each kind is saved. Returns the row; None where it could not be made, which was noted.


def _role(taking: _Taking, row: Group, entry: Entry) -> Group:
    row.save()
    row.permissions.set(permissions(entry.get("permissions", [])))
    return row


def _configuration(taking: _Taking, row: Configuration, entry: Entry) -> Configuration:
    return settings_of.save_configuration(configuration=row, actor=ACTOR)


def _credential(taking: _Taking, row: Any, entry: Entry) -> Any:
    return credentials.save_credential(
        credential=row, actor=ACTOR, value=row.value or None, scope=entry.get("scope", [])
    )


def _server(taking: _Taking, row: Server, entry: Entry) -> Server:
    row = lifecycle.save_server(server=row, actor=ACTOR)
    if taking.confirms(entry) and not row.launch_confirmed:
        row = lifecycle.confirm_launch(server=row, actor=ACTOR, launch_hash=row.launch_hash())
    if entry.get("confirmed") and not row.launch_confirmed:
        taking.note(f"servers/{row.slug}: its launch waits for a person's confirmation.")
    on = entry.get("enabled") is not False
    if on == row.enabled:
        return row
    switch = lifecycle.enable_server if on else lifecycle.disable_server
    return switch(server=row, actor=ACTOR)


def _tool(taking: _Taking, row: Tool, entry: Entry) -> Tool:
    tool = observe.described(server=row.server, name=row.name, body=_definition(entry.get("definition")))
    if taking.confirms(entry) and tool.latest is not None:
        tool = decisions.approve(definition=tool.latest, actor=ACTOR)
    for column in _TOOL.fields():
        setattr(tool, column.name, getattr(row, column.name))
    tool.full_clean()
    tool.save()
    return tool


def _definition(said: Any) -> dict[str, Any]:
    try:
        body = json.loads(said) if isinstance(said, str) else said
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ConfigInvalid("it has no definition.", remedy="Leave the tool out; its server tells it.")
    return body


def _provider(taking: _Taking, row: Any, entry: Entry) -> Any:
    row = providers.save_provider(provider=row, actor=ACTOR)
    if taking.confirms(entry) and row.draft_problem() is not None:
        row = providers.confirm_destination(provider=row, actor=ACTOR, shown=row.destination_hash())
    if entry.get("confirmed") and row.draft_problem() is not None:
        taking.note(f"providers/{row.slug}: where its key goes waits for a person's confirmation.")
    return row


def _expert(taking: _Taking, row: Any, entry: Entry) -> Any:

    row = experts.save_expert(expert=row, targets=taking.many(LanguageModel, entry.get("models")), actor=ACTOR)
    users, places = taking.many(Agent, entry.get("users")), taking.many(Endpoint, entry.get("endpoints"))
    experts.offer(expert=row, agents=users, endpoints=places, actor=ACTOR)
    return row


def _permit(taking: _Taking, row: Permit, entry: Entry) -> Permit | None:
    giver = User.objects.filter(username=entry.get("given_by") or "").first()
    if giver is None or row.tool.pinned is None or not taking.confirm:
        taking.note(
            f"permits: of {row.agent} for {row.tool}, left out: who gave it is not here, or it was not confirmed."
        )
        return None
    row.created_by, row.definition_hash, row.server_revision = giver, row.tool.pinned.hash, row.tool.server.revision
    row.full_clean(exclude=["request"])
    row.save()
    audit.record(kind="permit.created", actor=ACTOR, subject=f"agent:{row.agent}", tool=str(row.tool))
    return row


def _channel(taking: _Taking, row: Any, entry: Entry) -> Any:

    if taking.missing:
        taking.note(f"channels/{row.name}: left out until somebody gives {', '.join(taking.missing)}.")
        return None
    return outbox.save_channel(
        channel=row, actor=ACTOR, servers=taking.many(Server, entry.get("servers")),
        rules=taking.many(PolicyRule, entry.get("rules")),
    )  # fmt: skip


def _slack_person(taking: _Taking, row: Any, entry: Entry) -> Any:
    return outbox.save_slack_identity(identity=row, actor=ACTOR) if row.user_id else None


_TOOL = kind_of("tools")
_SAVERS: dict[str, Callable[[_Taking, Any, Entry], Any]] = {
    "roles": _role, "configuration": _configuration, "credentials": _credential, "servers": _server, "tools": _tool,
    "agents": lambda taking, row, entry: agents.save_agent(agent=row, actor=ACTOR),
    "endpoints": lambda taking, row, entry: agents.save_endpoint(endpoint=row, actor=ACTOR),
    "workspaces": lambda taking, row, entry: agents.save_workspace(workspace=row, actor=ACTOR),
    "providers": _provider,
    "models": lambda taking, row, entry: providers.save_model(model=row, actor=ACTOR),
    "experts": _expert,
    "rules": lambda taking, row, entry: rules.save_rule(rule=row, actor=ACTOR, unanswered=True),
    "grants": lambda taking, row, entry: grants.save_grant(grant=row, actor=ACTOR),
    "permits": _permit, "channels": _channel, "slack_people": _slack_person,
}  # fmt: skip
