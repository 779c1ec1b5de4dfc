"""Expert tools in configuration files: what a Slipsnisse file says becomes providers, models, tools
and grants.

The tools of a file's whitelist that their servers have not offered yet are awaited, and granted
when they come. A provider's key is never in a file, only a reference to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.formats.document import Document, JsonObject, Parked
from mcpregistry.domain.formats.keys import make_slug
from mcpregistry.domain.formats.notes import make_pointer
from mcpregistry.domain.formats.placeholders import is_reference
from mcpregistry.domain.formats.slipsnisse import list_tool_keys
from mcpregistry.models import Agent, Endpoint, Server, Tool
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.exchange.sections import NOT_ITS_OWN, ImportChange, ImportTaking
from subagents.models import ExpertTool, LanguageModel, Provider
from subagents.models.provider import ProviderKind
from subagents.services import experts, providers
from subagents.services.exchange.expert_export import (
    entry_now,
    list_model_providers,
    list_tools,
    query_whole_experts,
)
from subagents.services.exchange.expert_rows import (
    MODEL_FIELDS,
    PROVIDER_FIELDS,
    TOOL_FIELDS,
    fill,
    key_of,
    key_reference,
    list_whitelist,
    mask_headers,
    model_entry,
    provider_entry,
    tool_entry,
)
from subagents.services.exchange.served_experts import (
    describe_missing_tool,
    references,
    serve,
    switch,
    take_back,
)

_NOT_MADE = "Kept, but not created: this part of the file grants tools or adds providers, and only a user with the role admin can do this."
_WHO = "Ask a user with the role admin to import the file."


class ExpertFiles:
    """The section of files that holds expert tools; see
    ``mcpregistry.services.exchange.sections.ExchangeSection``."""

    serve = staticmethod(serve)
    switch = staticmethod(switch)
    references = staticmethod(references)
    take_back = staticmethod(take_back)

    def take(self, document: Document, taking: ImportTaking) -> Document:
        """Import the document's tools and providers; returns it with notes added."""
        if not document.expert_tools and not document.model_providers:
            return document
        if not taking.may_grant:
            places = [at for at, _ in _places(document)]
            places += [make_pointer("providers", name) for name in document.model_providers]
            for at in places:
                taking.note("parked", at, _NOT_MADE, _WHO)
            return document
        return _ExpertImport(document, taking).all()

    def give(self, document: Document, *, include_secrets: bool) -> Document:
        """The document with all expert tools and providers added."""
        return replace(
            document,
            expert_tools=list_tools(document),
            model_providers=list_model_providers(document, include_secrets=include_secrets),
        )


# In


class _ExpertImport:
    """One file's providers and tools on their way into the database."""

    def __init__(self, document: Document, taking: ImportTaking) -> None:
        self.document = document
        self.taking = taking
        # by the name that the file gives them, as far as they were asked for
        self._providers: dict[str, Provider] = {}
        self._models: dict[tuple[int, str], LanguageModel] = {}

    def all(self) -> Document:
        for name, entry in self.document.model_providers.items():
            self._run_guarded(make_pointer("providers", name), self._save_provider, name, entry)
        made = [
            (at, entry, self._run_guarded(at, self._tool, at, entry))
            for at, entry in _places(self.document)
        ]
        for at, entry, row in made:
            if row is not None:
                self._run_guarded(at, self._save_offer, at, entry, row)
        stubs = {
            name: {"made": _list_stated_keys(entry)}
            for name, entry in self.document.model_providers.items()
        }
        tools = tuple(
            _stub(entry, self.taking.variant) for _, entry, row in made if row is not None
        )
        return replace(self.document, expert_tools=tools, model_providers=stubs)

    def _run_guarded(self, at: str, do: Any, *args: Any) -> Any:
        """A refusal of the ordinary verbs becomes a note at its place, and the file is not
        taken."""
        try:
            return do(*args)
        except SlipsnisseError as error:
            self._refuse(at, error.message, error.remedy)
            return None

    def _refuse(self, at: str, sentence: str, remedy: str) -> None:
        self.taking.note("refused", at, sentence, remedy)

    def _check_change(
        self,
        at: str,
        kind: str,
        name: str,
        before: JsonObject | None,
        after: JsonObject,
        *,
        hidden: bool = False,
    ) -> bool:
        """Whether the record shall become what the file says; tells of it, and of a conflict.

        ``hidden``: values that are not shown differ.
        """
        if before == after and not hidden:
            self.taking.changed(ImportChange(name, "unchanged", before, after, kind=kind))
            return False
        how = self.taking.on_conflict
        ours = how == "replace" or (how == "own" and f"{kind}/{name}" in self.taking.own)
        action: Any = "created" if before is None else "changed"
        change = ImportChange(
            name, action, before or {}, after, hidden and before is not None, kind=kind
        )
        if before is None or ours:
            self.taking.changed(change)
            return True
        if how == "skip":
            self.taking.changed(replace(change, action="skipped"))
            self.taking.note(
                "parked", at, f"A {kind} with this name exists and differs. It was not changed.", ""
            )
            return False
        remedy = "Choose another name, or choose to keep (skip) or replace the existing one."
        remedy = NOT_ITS_OWN if how == "own" else remedy
        self.taking.changed(change)
        self._refuse(at, f"A {kind} with this name exists and differs.", remedy)
        return False

    def _save_provider(self, name: str, entry: JsonObject) -> None:
        at = make_pointer("providers", name)
        row = Provider.objects.filter(slug=name).first()
        before = provider_entry(row, entry, headers=mask_headers(row.headers)) if row else None
        row = row or Provider(slug=name)
        fill(row, entry, PROVIDER_FIELDS)
        key = entry.get("key", None if before else key_reference(row.kind)) or None
        headers = entry.get("headers")
        now = row.headers if headers is None else headers
        after = provider_entry(row, entry, key=key, headers=mask_headers(now))
        hidden = now != row.headers or (key is not None and key != row.key)
        if self._check_change(at, "provider", name, before, after, hidden=hidden):
            providers.save_provider(provider=row, actor=self.taking.actor, key=key, headers=headers)
            self._tell_of_key(at + "/key", row)
        for model, facts in entry.get("models", {}).items():
            place = at + make_pointer("models", model)
            self._run_guarded(place, self._save_model, place, row, model, facts)

    def _tell_of_key(self, at: str, row: Provider) -> None:
        if row.key and is_reference(row.key):
            sentence = f"The key is read from {row.key} for each request."
            remedy = (
                "List the variable in SLIPSNISSE_PASS_ENV"
                if "cred:" not in row.key
                else "Enter the credential"
            )
            self.taking.note(
                "kept", at, sentence, f"{remedy}, or enter the key in the admin under Providers."
            )

    def _save_model(self, at: str, provider: Provider, name: str, entry: JsonObject) -> None:
        if provider._state.adding:  # refused, and said so
            return
        row = LanguageModel.objects.filter(provider=provider, name=name).first()
        before = model_entry(row, entry) if row else None
        row = row or LanguageModel(provider=provider, name=name)
        fill(row, entry, MODEL_FIELDS)
        if self._check_change(
            at, "model", f"{provider.slug}/{name}", before, model_entry(row, entry)
        ):
            providers.save_model(model=row, actor=self.taking.actor)

    def _tool(self, at: str, entry: JsonObject) -> ExpertTool | None:
        """The saved tool; None when it is refused, or left as it is."""
        old = self._before.get(entry["name"])
        targets = self._find_targets(at, entry, old)
        tools, awaited = self._whitelist(at, entry)
        if targets is None or tools is None:
            return None
        before = (
            entry_now(old, self._whitelists[old.pk], kept=Parked(order=tuple(entry)))
            if old
            else None
        )
        row = old or ExpertTool(name=entry["name"])
        known = _list_valid_keys(self.taking.variant)
        fill(row, {key: value for key, value in entry.items() if key in known}, TOOL_FIELDS)
        row.awaited_tools = awaited
        after = tool_entry(
            row,
            targets=[(m.provider.slug, m.name) for m in targets],
            whitelist=[*map(key_of, tools), *awaited],
            users=self._list_slugs("users", entry, old),
            endpoints=self._list_slugs("endpoints", entry, old),
            kept=Parked(order=tuple(entry)),
        )
        if not self._check_change(at, "tool", row.name, before, after):
            return old if before == after else None
        experts.save_expert(expert=row, targets=targets, actor=self.taking.actor)
        experts.set_whitelist(expert=row, tools=tools, actor=self.taking.actor)
        return row

    def _list_slugs(self, key: str, entry: JsonObject, old: ExpertTool | None) -> list[str]:
        """Slugs of agents or endpoints: the file's, or where it is silent those of now."""
        if key in entry and self.taking.variant != "slipsnisse":
            return list(entry[key])
        return [each.slug for each in getattr(old, key).all()] if old else []

    def _find_targets(
        self, at: str, entry: JsonObject, old: ExpertTool | None
    ) -> list[LanguageModel] | None:
        """The models in order; fallbacks that the file is silent about stay."""
        stated = entry.get("fallbacks") if self.taking.variant != "slipsnisse" else None
        found = [self._target(at, entry)]
        for index, each in enumerate(stated or []):
            found.append(self._target(at + make_pointer("fallbacks", index), each))
        if None in found:
            return None
        models = [model for model in found if model is not None]
        if stated is None and old is not None:
            models += [target.model for target in old.ordered_targets.all()][1:]
        return list(dict.fromkeys(models))

    def _target(self, at: str, entry: Mapping[str, Any]) -> LanguageModel | None:
        provider = self._find_named_provider(at, entry["provider"])
        if provider is None:
            return None
        key = provider.pk, entry["model"]
        if (
            key not in self._models
            and (model := self._find_or_create_model(at, provider, entry["model"])) is not None
        ):
            self._models[key] = model
        return self._models.get(key)

    def _find_or_create_model(self, at: str, provider: Provider, name: str) -> LanguageModel | None:
        model = (
            LanguageModel.objects.select_related("provider")
            .filter(provider=provider, name=name)
            .first()
        )
        if model is not None or not self._model_may_be(at, provider, name):
            return model
        model = providers.save_model(
            model=LanguageModel(provider=provider, name=name), actor=self.taking.actor
        )
        self.taking.changed(
            ImportChange(str(model), "created", {}, {"name": model.name}, kind="model")
        )
        return model

    def _find_named_provider(self, at: str, name: str) -> Provider | None:
        """By its name, else the first of that kind; a kind that nobody has set up is set up, its
        key in a variable."""
        if (
            name not in self._providers
            and (row := self._find_or_create_provider(at, name)) is not None
        ):
            self._providers[name] = row
        return self._providers.get(name)

    def _find_or_create_provider(self, at: str, name: str) -> Provider | None:
        row = (
            Provider.objects.filter(slug=name).first() or Provider.objects.filter(kind=name).first()
        )
        if (
            row is not None
            and f"provider/{row.slug}" in self.taking.own
            and name not in self.document.model_providers
        ):
            entry = provider_entry(row)  # the file has brought it, and does not describe it
            self.taking.changed(ImportChange(row.slug, "unchanged", entry, entry, kind="provider"))
        if row is not None or name in self.document.model_providers:
            return row
        if name not in ProviderKind.values or name == ProviderKind.COMPATIBLE:
            known = sorted({*Provider.objects.values_list("slug", flat=True), *KINDS})
            remedy = f"Describe it under providers in the extended format, or use one of {', '.join(known)}."
            self._refuse(at + "/provider", error_texts.say_not_found("provider", name), remedy)
            return None
        row = Provider(
            slug=name,
            kind=name,
            allowed_networks=["127.0.0.1/32"] if name == ProviderKind.OLLAMA else [],
        )
        row = providers.save_provider(
            provider=row, actor=self.taking.actor, key=key_reference(name) or None
        )
        self.taking.changed(ImportChange(name, "created", {}, provider_entry(row), kind="provider"))
        self._tell_of_key(at + "/provider", row)
        return row

    def _model_may_be(self, at: str, provider: Provider, name: str) -> bool:
        """Where the models of a provider are known, another name is a misspelt one."""
        known: list[str] | None = None
        if provider.kind == ProviderKind.SCRIPTED and not provider.base_url:
            from subagents.llm.scripted.bundled_scripts import demo_script

            known = sorted(demo_script().scenarios)
        elif models := self.document.model_providers.get(provider.slug, {}).get("models"):
            known = sorted(models)
        if known is None or name in known:
            return True
        remedy = f"Correct the name, or add the model to the provider. Available models: {', '.join(known)}."
        self._refuse(
            at + "/model", f'The provider "{provider.slug}" has no model named "{name}".', remedy
        )
        return False

    def _whitelist(self, at: str, entry: JsonObject) -> tuple[list[Tool] | None, list[str]]:
        """(tools that are offered, names that are awaited); None when one is wrong."""
        found = []
        awaited = []
        wrong = False
        for key in list_whitelist(entry["internal_tools"]):
            at_server, _, name = key.partition("::")
            server = self._servers.get(at_server)
            tool = self._offered.get(key)
            if tool is not None:
                found.append(tool)
            elif server is not None and _is_known(server):
                wrong = True
                self._refuse(
                    at + make_pointer("internal_tools", at_server),
                    *describe_missing_tool(server, name),
                )
            else:
                awaited.append(key)
        if awaited:
            sentence = f"These tools are granted as soon as their servers offer them: {', '.join(awaited[:10])}."
            self.taking.note(
                "kept", at + "/internal_tools", sentence, "Confirm and test the servers."
            )
        return (None if wrong else found), awaited

    @cached_property
    def _before(self) -> dict[str, ExpertTool]:
        """The file's tools as they are now, by name, with all that an entry says of them."""
        rows = ExpertTool.objects.filter(
            name__in=[entry["name"] for entry in self.document.expert_tools]
        )
        return {row.name: row for row in query_whole_experts(rows)}

    @cached_property
    def _whitelists(self) -> dict[int, list[Tool]]:
        return experts.load_whitelists(list(self._before.values()))

    @cached_property
    def _servers(self) -> dict[str, Server]:
        named = {
            make_slug(key)
            for entry in self.document.expert_tools
            for key in entry["internal_tools"]
        }
        return {server.slug: server for server in Server.objects.filter(slug__in=named)}

    @cached_property
    def _offered(self) -> dict[str, Tool]:
        """What these servers offer, as ``server::tool``."""
        tools = Tool.objects.filter(server__in=self._servers.values(), present=True)
        return {key_of(tool): tool for tool in tools.select_related("server")}

    def _save_offer(self, at: str, entry: JsonObject, row: ExpertTool) -> None:
        if self.taking.variant == "slipsnisse" or not {"users", "endpoints"} & set(entry):
            return
        agents = self._find_named_rows(at, "users", entry, row, Agent)
        endpoints = self._find_named_rows(at, "endpoints", entry, row, Endpoint)
        now = [{each.pk for each in getattr(row, key).all()} for key in ("users", "endpoints")]
        if (
            agents is None
            or endpoints is None
            or [{a.pk for a in agents}, {e.pk for e in endpoints}] == now
        ):
            return
        experts.offer(expert=row, agents=agents, endpoints=endpoints, actor=self.taking.actor)

    def _find_named_rows(
        self, at: str, key: str, entry: JsonObject, row: ExpertTool, model: Any
    ) -> list[Any] | None:
        if key not in entry:
            return list(getattr(row, key).all())
        there = {each.slug: each for each in model.objects.filter(slug__in=entry[key])}
        for index, name in enumerate(entry[key]):
            if name not in there:
                known = ", ".join(model.objects.values_list("slug", flat=True)[:20]) or "none"
                word = model._meta.verbose_name
                self._refuse(
                    at + make_pointer(key, index),
                    error_texts.say_not_found(str(word), name),
                    f"Correct the name. Available: {known}.",
                )
        return list(there.values()) if len(there) == len(set(entry[key])) else None


KINDS = [kind for kind in ProviderKind.values if kind != ProviderKind.COMPATIBLE]


def _places(document: Document) -> Iterable[tuple[str, JsonObject]]:
    return [
        (make_pointer("tools", index), entry) for index, entry in enumerate(document.expert_tools)
    ]


def _is_known(server: Server) -> bool:
    """Its tools were read as it is launched now."""
    return (
        server.lifecycle == Lifecycle.ACTIVE
        and server.launch_confirmed
        and server.refreshed_at is not None
    )


# What a file has said besides, so that an export gives it back


def _list_valid_keys(variant: str) -> frozenset[str]:
    return list_tool_keys("slipsnisse" if variant == "slipsnisse" else "slipsnisse-extended")


def _stub(entry: JsonObject, variant: str) -> JsonObject:
    known = _list_valid_keys(variant)
    unknown = {key: value for key, value in entry.items() if key not in known}
    spelled: JsonObject = {
        key: entry[key]
        for key in ("internal_tools", "users", "endpoints", "provider")
        if key in entry
    }
    return {"name": entry["name"], "made": Parked(unknown, tuple(entry), spelled).to_json()}


def _list_stated_keys(entry: JsonObject) -> JsonObject:
    models = {name: list(facts) for name, facts in entry.get("models", {}).items()}
    return {"order": list(entry), "models": models}
