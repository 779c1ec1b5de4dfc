"""Providers and models: saved, confirmed and deleted with a word in the audit log, never with a key
in it.

Invariant: a stored key goes only where somebody who has it, or somebody who may confirm launches,
has let it go. Whoever changes a provider's destination by any door makes it a draft, unless they
enter its key in the same save.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from django.db import transaction
from django.db.models import ProtectedError
from django.utils import timezone

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.servers.launch import check_networks, check_pairs
from mcpregistry.domain.servers.redacted_env import mask_record_secrets
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.services.access.scopes import check_scope, rename_in_scopes
from mcpregistry.services.configuration.dispatch import send_task
from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.records import audit
from subagents.domain.destination import proves_the_key
from subagents.domain.model_options import combine_options, problem
from subagents.domain.spec import DEFAULT_WINDOW
from subagents.models import LanguageModel, Provider
from subagents.models.provider import ProviderKind

_TOKENIZER = re.compile(r"^(tiktoken:\w+|anthropic|claude|gemini|google)(:[\w.-]+)?\Z")
_LONGEST_TEST = 1_000  # characters
# Only confirmations and tests write these columns. ``save_provider`` ignores values that its caller
# has set.
_BY_OTHERS = (
    "confirmed_destination",
    "confirmed_by",
    "confirmed_at",
    "test_asked_at",
    "tested_at",
    "test_model",
    "test_answer",
    "test_error",
    "test_ms",
)


@transaction.atomic
def save_provider(
    *,
    provider: Provider,
    actor: str,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Provider:
    """Save the provider; for ``key`` and ``headers``, None keeps what is stored.

    It is a draft afterwards if where its key goes was changed and not every secret of it was
    entered with this save. Raises ``ConfigInvalid`` naming what is wrong.
    """
    before = take_current(provider, own=_BY_OTHERS)
    _check(provider)
    _check_key(key)
    if key is not None:
        provider.key = key
    if headers is not None:
        provider.headers = check_pairs(dict(headers), "Headers")
    if before and before.slug != provider.slug:
        rename_in_scopes(f"provider:{before.slug}", f"provider:{provider.slug}")
    check_scope([_key(provider), *_headers(provider).values()], f"provider:{provider.slug}")
    _confirm_if_entered(provider, before, key)
    save_checked(provider)
    audit.record_entry(
        kind="provider.changed" if before else "provider.created",
        actor=actor,
        subject=f"provider:{provider.slug}",
        new_key=key is not None,
        draft=provider.draft_problem() is not None,
        **_facts(provider),
    )
    return provider


def _confirm_if_entered(provider: Provider, before: Provider | None, key: str | None) -> None:
    """Whoever enters the secrets knows them, so they may say where these go; but not into private
    networks."""
    if before is None:  # whatever the caller has set
        provider.confirmed_destination = ""
        provider.confirmed_at = None
        provider.confirmed_by = None
    if provider.draft_problem() is None or provider.allowed_networks:
        return
    if proves_the_key(key, _headers(provider), _headers(before) if before else {}):
        provider.confirmed_destination = provider.destination_hash()
        provider.confirmed_at = timezone.now()
        provider.confirmed_by = None


def _headers(provider: Provider) -> dict[str, str]:
    """Its headers; none where the key that sealed them is lost, since nobody can send those."""
    try:
        return dict(provider.headers)
    except ConfigInvalid:
        return {}


def _key(provider: Provider) -> str:
    try:
        return str(provider.key)
    except ConfigInvalid:
        return ""


def _facts(provider: Provider) -> dict[str, object]:
    """Where its key goes, as the audit log tells it; names of headers, never their values."""
    return mask_record_secrets({"base_url": provider.base_url}) | {
        "provider": provider.kind,
        "networks": provider.allowed_networks,
        "headers": sorted(_headers(provider)),
    }


@transaction.atomic
def confirm_destination(
    *, provider: Provider, actor: str, shown: str, user: object = None
) -> Provider:
    """Let the key go where it would go now; ``shown`` is the fingerprint of what the person has
    seen."""
    provider = Provider.objects.select_for_update().get(pk=provider.pk)
    if provider.destination_hash() != shown:
        raise Conflict(
            "The provider was changed after this page was shown.",
            remedy="Reload the page, then confirm the provider.",
        )
    _check(provider)
    provider.confirmed_destination = shown
    provider.confirmed_at = timezone.now()
    provider.confirmed_by = user  # type: ignore[assignment]
    provider.save()
    audit.record_entry(
        kind="provider.confirmed",
        actor=actor,
        subject=f"provider:{provider.slug}",
        destination=shown,
        **_facts(provider),
    )
    return provider


def _check_key(key: str | None) -> None:
    """A key in one of the forms in which it is copied by mistake would only be refused by the
    provider, later."""
    if key and (key.lower().startswith("bearer ") or any(letter.isspace() for letter in key)):
        raise ConfigInvalid(
            "The key contains a space.",
            remedy='Enter only the key, without "Bearer" and without line breaks.',
        )


def _check_address(provider: Provider) -> None:
    url = provider.base_url.rstrip("/")
    for ending in ("/chat/completions", "/messages", "/responses", "/api/chat"):
        if url.endswith(ending):
            raise ConfigInvalid(
                "The base URL is the address of one operation of the provider.",
                remedy=f"Enter {url.removesuffix(ending)} instead.",
            )


def _check(provider: Provider) -> None:
    _check_address(provider)
    check_networks(provider.allowed_networks)
    if provider.kind == ProviderKind.COMPATIBLE and not provider.base_url:
        raise ConfigInvalid(
            error_texts.say_required("The base URL of a compatible server"),
            remedy=error_texts.advise_form("the address of its API", "http://host/v1"),
        )
    if not isinstance(provider.options, dict):
        raise ConfigInvalid(
            "The options must be a JSON object.",
            remedy=error_texts.advise_form("a JSON object", '{"top_p": 0.9}'),
        )
    _check_options(provider, LanguageModel(provider=provider))
    for model in provider.models.all() if provider.pk else ():
        _check_options(provider, model)


def _check_options(provider: Provider, model: LanguageModel) -> None:
    """What is sent with every request of this model; ``model`` without a name stands for any that
    may come."""
    options = combine_options(provider.kind, model.name, provider.options, model.overrides)
    choice = model.tool_choice or provider.tool_choice
    wrong = problem(
        provider.kind, model.name, options, max_output=model.max_output or 0, tool_choice=choice
    )
    if wrong is not None:
        about = f"{model.name}: " if model.name else ""
        raise ConfigInvalid(f"{about}{wrong.sentence}", remedy=wrong.remedy)


@transaction.atomic
def delete_provider(*, provider: Provider, actor: str) -> None:
    """Delete the provider with its models. Raises ``Conflict`` while an expert tool asks one of
    them."""
    try:
        provider.delete()
    except ProtectedError as error:
        raise _in_use(error) from error
    rename_in_scopes(f"provider:{provider.slug}")
    audit.record_entry(kind="provider.deleted", actor=actor, subject=f"provider:{provider.slug}")


@transaction.atomic
def save_model(*, model: LanguageModel, actor: str) -> LanguageModel:
    """Save the model. Raises ``ConfigInvalid`` naming what is wrong."""
    kind = "model.created" if model._state.adding else "model.changed"
    take_current(model)
    _check_model(model)
    save_checked(model)
    audit.record_entry(kind=kind, actor=actor, subject=f"model:{model}")
    return model


def _check_model(model: LanguageModel) -> None:
    if not isinstance(model.overrides, dict):
        raise ConfigInvalid(
            "The overrides must be a JSON object.",
            remedy=error_texts.advise_form("a JSON object", '{"temperature": 0.2}'),
        )
    _check_options(model.provider, model)
    window = model.context_window or DEFAULT_WINDOW
    if (model.max_output or 0) + (model.buffer_tokens or 0) >= window:
        raise ConfigInvalid(
            f"Max output and Buffer tokens together use the whole context window of {window:,} tokens.",
            remedy="Lower Max output or Buffer tokens, or correct Context window.",
        )
    if model.tokenizer and not _TOKENIZER.match(model.tokenizer):
        raise ConfigInvalid(
            error_texts.say_not_valid(model.tokenizer, "a valid tokenizer"),
            remedy="Use tiktoken:o200k_base, tiktoken:cl100k_base, anthropic or google, or leave the field empty.",
        )


@transaction.atomic
def delete_model(*, model: LanguageModel, actor: str) -> None:
    """Delete the model. Raises ``Conflict`` while an expert tool asks it."""
    try:
        model.delete()
    except ProtectedError as error:
        raise _in_use(error) from error
    audit.record_entry(kind="model.deleted", actor=actor, subject=f"model:{model}")


def _in_use(error: ProtectedError) -> Conflict:
    names = ", ".join(
        sorted({str(row.expert) for row in error.protected_objects if hasattr(row, "expert")})
    )
    if not names:
        return Conflict(
            "The model cannot be deleted, because the site still has records of replays that used it.",
            remedy="Disable it instead. Retention deletes the replays later.",
        )
    return Conflict(
        f"The model is used by these expert tools: {names}.",
        remedy="Choose another model for these expert tools first.",
    )


@transaction.atomic
def request_test(*, provider: Provider, actor: str) -> LanguageModel:
    """Let a worker ask the provider's first model for a word. Raises Conflict when there is none to
    ask, or a draft."""
    if draft := provider.draft_problem():
        raise Conflict(draft.sentence, remedy=draft.remedy)
    model = provider.models.filter(enabled=True).order_by("pk").first()
    if model is None:
        raise Conflict(
            "The provider has no enabled model.",
            remedy="Add a model to this provider, or enable one.",
        )
    Provider.objects.filter(pk=provider.pk).update(
        test_asked_at=timezone.now(), test_model=model.name, test_error="", test_answer=""
    )
    audit.record_entry(
        kind="provider.test_asked",
        actor=actor,
        subject=f"provider:{provider.slug}",
        model=str(model),
    )
    transaction.on_commit(lambda: send_task("subagents.tasks.test_provider", provider.pk, model.pk))
    return model


def note_test(*, provider_id: int, answer: str, error: str, took_ms: float) -> None:
    """Note what a test has found; no change of the provider, so its history says nothing of it."""
    Provider.objects.filter(pk=provider_id).update(
        tested_at=timezone.now(),
        test_answer=clean_text(answer, _LONGEST_TEST),
        test_error=clean_text(error, _LONGEST_TEST),
        test_ms=took_ms,
    )
