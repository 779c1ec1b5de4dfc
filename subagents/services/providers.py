"""Providers and models: saved and deleted with a word in the audit log, never with a key in it."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction
from django.db.models import ProtectedError

from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.services import audit
from mcpregistry.services.records import save_checked
from subagents.models import LanguageModel, Provider
from subagents.models.provider import Kind

# What a local server's options may hold (Ollama's own names); a misspelt one would be ignored in silence.
_OLLAMA = {
    "num_ctx", "num_predict", "temperature", "top_p", "top_k", "min_p", "repeat_last_n", "repeat_penalty", "stop",
    "seed", "think",
}  # fmt: skip
_OURS = {"model", "messages", "tools", "stream", "api_key", "api_base", "num_retries", "max_retries", "timeout"}


@transaction.atomic
def save_provider(
    *, provider: Provider, actor: str, key: str | None = None, headers: Mapping[str, str] | None = None
) -> Provider:
    """``key`` and ``headers``: None keeps what is stored. Raises ConfigInvalid naming what is wrong."""
    kind = "provider.changed" if provider.pk else "provider.created"
    _check(provider)
    if key is not None:
        provider.key = key
    if headers is not None:
        provider.headers = dict(headers)
    save_checked(provider)
    audit.record(
        kind=kind, actor=actor, subject=f"provider:{provider.slug}", provider=provider.kind, new_key=key is not None
    )
    return provider


def _check(provider: Provider) -> None:
    if provider.kind == Kind.COMPATIBLE and not provider.base_url:
        raise ConfigInvalid("A compatible server needs its address.", remedy="Enter the base URL, e.g. http://host/v1.")
    if not isinstance(provider.options, dict):
        raise ConfigInvalid("The options must be an object.", remedy='Write e.g. {"top_p": 0.9}.')
    ours = sorted(_OURS & set(provider.options))
    if ours:
        raise ConfigInvalid(f"These options are set by the site itself: {', '.join(ours)}.", remedy="Remove them.")
    unknown = sorted(set(provider.options) - _OLLAMA) if provider.kind == Kind.OLLAMA else []
    if unknown:
        raise ConfigInvalid(
            f"Ollama has no options named {', '.join(unknown)}.", remedy=f"Known: {', '.join(sorted(_OLLAMA))}."
        )


@transaction.atomic
def delete_provider(*, provider: Provider, actor: str) -> None:
    """Raises Conflict while an expert tool asks one of its models."""
    try:
        provider.delete()
    except ProtectedError as error:
        raise _in_use(error) from error
    audit.record(kind="provider.deleted", actor=actor, subject=f"provider:{provider.slug}")


@transaction.atomic
def save_model(*, model: LanguageModel, actor: str) -> LanguageModel:
    kind = "model.changed" if model.pk else "model.created"
    save_checked(model)
    audit.record(kind=kind, actor=actor, subject=f"model:{model}")
    return model


@transaction.atomic
def delete_model(*, model: LanguageModel, actor: str) -> None:
    """Raises Conflict while an expert tool asks it."""
    try:
        model.delete()
    except ProtectedError as error:
        raise _in_use(error) from error
    audit.record(kind="model.deleted", actor=actor, subject=f"model:{model}")


def _in_use(error: ProtectedError) -> Conflict:
    names = ", ".join(sorted({str(row.expert) for row in error.protected_objects if hasattr(row, "expert")}))
    if not names:
        return Conflict("Replays that asked it are on record.", remedy="Switch it off instead; they go with retention.")
    return Conflict(f"It is asked by {names}.", remedy="Choose another model there first.")
