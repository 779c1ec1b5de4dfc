"""A document of a whole site, read into this one: what differs is saved by the services, all of it
or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import DatabaseError, transaction
from django.db.models import Model

from controlplane.configuration.document_export import VERSION, WHOLE
from controlplane.configuration.document_values import (
    CORRECT,
    Entry,
    Secrets,
    read,
    unknown_address,
)
from controlplane.configuration.entry_checks import DECIDED, check_entry, own
from controlplane.configuration.record_kinds import KINDS, RecordKind, kind_of, lookup
from controlplane.configuration.record_savers import ACTOR, DELETERS, SAVERS
from mcpregistry.domain import error_texts, offer_kinds
from mcpregistry.domain.caller_rights import Rights, grant_all_rights
from mcpregistry.domain.errors import ConfigInvalid, SlipsnisseError
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.domain.servers.redacted_env import ADDRESSES
from mcpregistry.domain.text.canonical import encode_lossy_json
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, Configuration, PolicyRule, Server, Tool
from mcpregistry.models.sealing import find_sealed_columns
from mcpregistry.services.access.roles import find_approvers
from mcpregistry.services.records import audit
from subagents.models import EffortAgent, ExpertTool, LanguageModel, Provider

_MOST_SHOWN = 200  # characters of a kept entry without a name


@dataclass
class DocumentReport:
    """``made``, ``changed`` and ``removed`` as section/name; ``kept``: rows that are here and not
    in the file."""

    made: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Undo(Exception):
    """Nothing of a trial stays."""


def take(
    document: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    confirm: bool,
    save: bool = True,
    after: Callable[[], None] = lambda: None,
) -> DocumentReport:
    """Make this site what the document says; rows that it does not name stay as they are.

    ``given``: secrets by their names; of others the ones that are here stay. ``confirm``: launches,
    destinations and definitions that were confirmed there are so here too, else each waits for a
    person. ``after`` may look at the result before it counts; without ``save`` it never does.
    Raises ConfigInvalid with the place of what is wrong.
    """
    _check_head(document)
    taking = _Taking(
        given, confirm, rights=grant_all_rights
    )  # only a command reads a whole document
    with _run_trial(save):
        for kind in KINDS:
            taking.import_section(kind, document.get(kind.section))
        taking.tell()
        after()
    return taking.report


@dataclass(frozen=True)
class DocumentItem:
    """A row (None: a new one, under ``key`` where it had one) to be made as ``entry`` says, with
    secrets of its own; without an entry, to be removed."""

    kind: RecordKind
    name: str
    row: Any
    entry: Entry | None
    given: Mapping[str, Any] = field(default_factory=dict)
    always: bool = False  # also where the entry says what the row says already: its name is another
    key: Any = None
    left_out: str = ""  # why nothing is made of it, as a note


def put(
    items: Iterable[DocumentItem],
    *,
    actor: str,
    rights: Rights,
    save: bool = True,
    after: Callable[[], None] = lambda: None,
) -> DocumentReport:
    """Make single rows what they once were, as ``take`` does for a document: what people confirm
    waits for them anew.

    ``items`` in the order of ``KINDS``. ``rights``: of the person, for the checks of the services.
    Raises ConfigInvalid with the place of a row that cannot be restored, also because the person
    lacks a right.
    """
    taking = _Taking({}, confirm=False, actor=actor, rights=rights)
    with _run_trial(save):
        for item in items:
            taking.import_row(item)
        taking.finish()
        after()
    return taking.report


@contextmanager
def _run_trial(save: bool) -> Iterator[None]:
    """One transaction with its entries of the audit log, of which nothing stays unless it is to be
    saved."""
    try:
        with transaction.atomic(), audit.collect_entries():
            yield
            if not save:
                raise _Undo
    except _Undo:
        pass


def _check_head(document: Mapping[str, Any]) -> None:
    if document.get("slipsnisse") != WHOLE:
        raise ConfigInvalid(
            "The file is not the configuration of a whole site.",
            remedy="Use a file that was created with `exportconfig --all`.",
        )
    version = document.get("version")
    if version != VERSION:
        raise ConfigInvalid(
            f"The file has the version {version!r:.20}, but this release reads version {VERSION}.",
            remedy="Export the file again, or import it with a release that reads its version.",
        )
    for section in document.keys() - {"slipsnisse", "version"}:
        kind_of(section)


class _Taking:
    def __init__(
        self, given: Mapping[str, Any], confirm: bool, actor: str = ACTOR, *, rights: Rights
    ) -> None:
        self.report = DocumentReport()
        self._given = given
        self.confirm = confirm
        self.actor = actor
        self.rights = rights
        self._rows: dict[type[Model], dict[str, Any]] = {}
        self._missing: list[str] = []
        self._later: list[tuple[str, Callable[[], None]]] = []

    def import_section(self, kind: RecordKind, said: Any) -> None:
        """What a file says of one kind; of a setting that it does not have, nothing."""
        if not kind.named:
            self._import_unnamed(kind, [] if said is None else said, dict(kind.all()))
            return
        if said is None and kind.model is Configuration:
            return
        said = {} if said is None else said
        here = self._all(kind.model)
        entries = {"site": said} if kind.model is Configuration else said
        if not isinstance(entries, dict):
            raise ConfigInvalid(
                f"{kind.section} is not an object that maps names to entries.", remedy=CORRECT
            )
        for name, entry in sorted(entries.items(), key=_marks):
            with _add_place(f"{kind.section}/{name}"):
                self._import_named(
                    kind, name, own(kind, name, check_entry(kind, entry)), here.get(name)
                )
        self.finish()
        shown = dict(kind.all())
        self.report.kept += [f"{kind.section}/{name}" for name in shown if name not in entries]

    def finish(self) -> None:
        """What was left until all rows are there."""
        for name, finish in self._later:
            with _add_place(name):
                finish()
        self._later.clear()

    def import_row(self, item: DocumentItem) -> None:
        """Make or remove one row."""
        kind = item.kind
        place = f"{item.kind.section}/{item.name}"
        with _add_place(place):
            if item.left_out:
                self.note(item.left_out)
                return
            if item.entry is None:
                DELETERS[kind.section](self, item.row)
                self._rows.pop(kind.model, None)
                self.report.removed.append(place)
                return
            self._given = item.given
            entry = check_entry(kind, item.entry)
            row = item.row
            if row is None:
                row = self._new(kind, item.name) if kind.named else kind.model()
                row.pk = row.pk if item.key is None else item.key
            elif not item.always and self._is_as(kind, item.name, entry, row):
                return
            self._put(kind, item.name, entry, row, new=item.row is None)

    def tell(self) -> None:
        """Who nobody can ask, and what the audit log says."""
        if self._all(Agent) and not find_approvers(None) and self._asks_for_change():
            self.report.notes.append(
                "Rules ask for approvals, but no user can approve calls yet. Give a user the role approver."
            )
        report = self.report
        if report.made or report.changed:
            audit.record_entry(
                kind="site.imported",
                actor=ACTOR,
                subject="site",
                made=report.made[:500],
                changed=report.changed[:500],
                confirmed=self.confirm,
            )

    def _asks_for_change(self) -> bool:
        return PolicyRule.objects.live().filter(outcome=RuleOutcome.ASK.value).exists()

    def _all(self, model: type[Model]) -> dict[str, Any]:
        if model not in self._rows:
            self._rows[model] = lookup(model)
        return self._rows[model]

    def _import_unnamed(self, kind: RecordKind, said: Any, here: dict[str, Any]) -> None:
        if not isinstance(said, list):
            raise ConfigInvalid(f"{kind.section} is not a list.", remedy=CORRECT)
        there = [
            encode_lossy_json(kind.normalize_entry(kind.entry(name, row, Secrets())))
            for name, row in here.items()
        ]
        for number, entry in enumerate(said, 1):
            place = f"{kind.section}/{number}"
            with _add_place(place):
                text = encode_lossy_json(kind.normalize_entry(check_entry(kind, entry)))
                if text in there:
                    there.remove(text)
                    continue
                row = kind.model()
                self._fill(kind, row, entry, Secrets())
                if SAVERS[kind.section](self, row, entry):
                    self.report.made.append(place)
        self.report.kept += [
            f"{kind.section}: {show_invisible_characters(text, _MOST_SHOWN)}" for text in there
        ]

    def _import_named(self, kind: RecordKind, name: str, entry: Entry, row: Any) -> None:
        if row is not None and self._is_as(kind, name, entry, row):
            return
        self._put(kind, name, entry, self._new(kind, name) if row is None else row, new=row is None)

    def _put(self, kind: RecordKind, name: str, entry: Entry, row: Any, *, new: bool) -> None:
        self._missing = []
        given = self._collect_secrets(kind, name, row)
        self._fill(kind, row, entry, given)
        self._unseal(kind, row, entry, given)
        done = SAVERS[kind.section](self, row, entry)
        if done is None:
            return
        if kind.named:
            self._all(kind.model)[name] = done
        if self._missing:
            self.report.notes.append(
                f"{kind.section}/{name}: enter the missing secrets: {', '.join(self._missing)}."
            )
        (self.report.made if new else self.report.changed).append(f"{kind.section}/{name}")

    def _new(self, kind: RecordKind, name: str) -> Any:
        if kind.model is Tool:
            server, _, key = name.partition("::")
            of_kind, tool = offer_kinds.parse_offer_key(key)
            return Tool(server=self._find_row(Server, server), kind=of_kind, name=tool)
        if kind.model is LanguageModel:
            provider, _, model = name.partition("/")
            return LanguageModel(provider=self._find_row(Provider, provider), name=model)
        if kind.model is EffortAgent:
            return EffortAgent(expert=self._find_row(ExpertTool, name))
        if kind.section == "slack_people":
            team, _, member = name.partition("/")
            return kind.model(team=team, member=member)
        (column,) = kind.inside
        return kind.model(**{column: name})

    def _is_as(self, kind: RecordKind, name: str, entry: Entry, row: Any) -> bool:
        """Whether saving the entry would change nothing: what nobody gave, and who is not here,
        counts for nothing."""
        here = Secrets()
        have = kind.entry(name, row, here)
        mine = {word: Secrets(here.found).insert_secrets(said) for word, said in have.items()}
        theirs, lacks = self._resolve_entry(kind, name, entry, row)
        for word in _list_unsaid_keys(kind, entry, theirs):
            mine.pop(word, None)
        for word in DECIDED:
            counts = self.confirm and not lacks and entry.get(word)
            # what a file does not decide, it does not take back
            for said in () if counts else (mine, theirs):
                said.pop(word, None)
        if kind.model is Tool and "approved" not in theirs and _waits(row, theirs):
            theirs["definition"] = mine.get("definition")
        return encode_lossy_json(kind.normalize_entry(mine)) == encode_lossy_json(
            kind.normalize_entry(theirs)
        )

    def _resolve_entry(
        self, kind: RecordKind, name: str, entry: Entry, row: Any
    ) -> tuple[Entry, bool]:
        """What a file says without what nobody gave and who is not here; and whether a secret is
        missing."""
        known = self._collect_secrets(kind, name, row)
        told = {}
        lacks = False
        for word, said in entry.items():
            value, missing = known.resolve_secrets(said) if word in kind.hiding() else (said, [])
            lacks = lacks or bool(missing)
            if not missing or value:
                told[word] = value
        for column in kind.fields():
            if column.related_model is User and told.get(column.name) not in self._all(User):
                told.pop(column.name, None)
        return told, lacks

    def _collect_secrets(self, kind: RecordKind, name: str, row: Any) -> Secrets:
        """Secrets that were given, else those of the row that is here."""
        here = Secrets()
        if not row._state.adding:
            kind.entry(name, row, here)
        return Secrets({**here.found, **self._given})

    def _fill(self, kind: RecordKind, row: Any, entry: Entry, given: Secrets) -> None:
        for column in kind.fields():
            if column.many_to_many:
                continue
            value = entry.get(column.name, column.get_default())
            if column.name in kind.hiding():
                value, missing = given.resolve_secrets(value)
                self._missing += missing
                if missing and column.name in ADDRESSES:
                    value = getattr(row, column.name) or unknown_address(row)
            if column.is_relation:
                related: Any = column.related_model
                # else what the service has made for it stays
                if value is not None or column.null or row._state.adding:
                    setattr(
                        row,
                        column.name,
                        None if value is None else self._find_related(related, value),
                    )
            else:
                setattr(row, column.name, read(column, value))

    def _find_related(self, model: type[Model], name: str) -> Any:
        if model is User and name not in self._all(User):
            self.report.notes.append(
                f"{error_texts.say_not_found('user', f'{name!s:.100}')} The field that names this user is left empty."
            )
            return None
        return self._find_row(model, name)

    def _find_row(self, model: type[Model], name: Any) -> Any:
        if not isinstance(name, str) or name not in self._all(model):
            what = model._meta.verbose_name
            raise ConfigInvalid(
                error_texts.say_not_found(str(what), f"{name!s:.100}"),
                remedy="Add it to the file, or correct the name.",
            )
        return self._all(model)[name]

    def many(self, model: type[Model], names: Any) -> list[Any]:
        """The rows of these names."""
        return [self._find_row(model, name) for name in names or []]

    def _unseal(self, kind: RecordKind, row: Any, entry: Entry, given: Secrets) -> None:
        for held in find_sealed_columns(kind.model).values():
            value, missing = given.resolve_secrets(entry.get(held, {}))
            if value and type(value) is not type(getattr(kind.model(), held)):
                raise ConfigInvalid(f"{held} has a value of the wrong type.", remedy=CORRECT)
            self._missing += missing
            setattr(row, held, value)

    def confirms(self, entry: Entry) -> bool:
        """Whether what was decided there counts here: only with every secret that it was decided
        with."""
        return (
            self.confirm and not self._missing and any(entry.get(word) is True for word in DECIDED)
        )

    def run_later(self, name: str, finish: Callable[[], None]) -> None:
        """Do this when every row of the section is there and has let go of what it no longer
        has."""
        self._later.append((f"experts/{name}", finish))

    @property
    def missing(self) -> list[str]:
        """The secrets of this row that nobody gave."""
        return self._missing

    def note(self, text: str) -> None:
        """Tell whoever imports."""
        self.report.notes.append(text)


def _marks(named: tuple[str, Any]) -> bool:
    """The one model that callers are compared with comes last: another has lost that mark by
    then."""
    return isinstance(named[1], dict) and named[1].get("compared") is True


def _list_unsaid_keys(kind: RecordKind, entry: Entry, told: Entry) -> Iterator[str]:
    """The words that stay as they are here: an address that nobody gave, and what no row of the
    kind is without."""
    for column in kind.fields():
        needed = column.is_relation and not column.many_to_many and not column.null
        if column.name not in told and (
            needed or (column.name in ADDRESSES and column.name in entry)
        ):
            yield column.name


def _waits(row: Tool, entry: Entry) -> bool:
    """Whether what a file says of a tool, and nobody decides on with it, is what waits for a
    decision here already."""
    return row.latest is not None and encode_lossy_json(entry.get("definition")) in (
        encode_lossy_json(row.latest.data),
        encode_lossy_json(row.latest.body),
    )


@contextmanager
def _add_place(place: str) -> Iterator[None]:
    try:
        yield
    except SlipsnisseError as error:
        raise ConfigInvalid(f"{place}: {error.message}", remedy=error.remedy) from error
    except (
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        ValidationError,
        ObjectDoesNotExist,
        DatabaseError,
    ) as error:
        raise ConfigInvalid(
            f"{place}: a value has the wrong type.",
            remedy="Compare the entry with the output of `exportconfig --all`.",
        ) from error
