"""From a model's row to what a request needs: address, key, options. Secrets are opened only
here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from django.conf import settings

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.prepared_queries import Given, Select
from mcpregistry.services.servers.targets import LISTED, fill_record_text
from subagents.domain.model_options import combine_options, normalize_names
from subagents.llm.model_values import ModelTarget
from subagents.llm.scripted.shared_server import resident
from subagents.models import LanguageModel
from subagents.models.provider import Provider, ProviderKind

_OWN_NETWORK = ("127.0.0.1/32",)  # in which the scripted provider of this very process listens
_OLLAMA = "http://127.0.0.1:11434"
# OpenRouter attributes requests by these, and answers some that lack them with a web page.
_ATTRIBUTION = {"X-OpenRouter-Title": "Slipsnisse", "User-Agent": "slipsnisse"}


def build_target(
    model_id: int,
    *,
    temperature: float,
    at_most: float,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> ModelTarget:
    """The address, key and options for one request to a model.

    ``at_most``: seconds that the run has left; ``options`` replace the model's own. Raises
    ConfigInvalid when the key cannot be opened, and for a draft.
    """
    model = _MODEL.get(id=model_id)
    provider = Provider(**{name: getattr(model, f"provider__{name}") for name in _PROVIDER})
    if problem := provider.draft_problem(model.overrides):
        raise ConfigInvalid(problem.sentence, remedy=problem.remedy)
    found = combine_options(
        provider.kind,
        model.name,
        provider.options,
        normalize_names(model.overrides) | dict(options),
    )
    return ModelTarget(
        kind=provider.kind,
        model=model.name,
        base_url=_address(provider),
        key=_fill_references(provider, provider.key, "key"),
        headers=_headers(provider),
        options={key: value for key, value in found.items() if key != "temperature"},
        tool_choice=model.tool_choice or provider.tool_choice,
        max_output=model.max_output,
        temperature=float(found.get("temperature", temperature)),
        timeout=max(1.0, min(provider.timeout, at_most)),
        networks=tuple(provider.allowed_networks) if provider.leaves_the_site else _OWN_NETWORK,
    )


_PROVIDER = (
    "uid",
    "slug",
    "kind",
    "base_url",
    "allowed_networks",
    "sealed_key",
    "sealed_headers",
    "options",
    "tool_choice",
    "timeout",
    "confirmed_destination",
)
_MODEL = Select(
    LanguageModel.objects.filter(id=Given("id")).values_list(
        "name",
        "max_output",
        "overrides",
        "tool_choice",
        *(f"provider__{name}" for name in _PROVIDER),
        named=True,
    )
)


def _fill_references(provider: Provider, text: str, what: str) -> str:
    """``${VAR}`` and ``${cred:NAME}`` as for servers: of our environment only what the operator
    lists is seen."""
    filled = fill_record_text(text, f"provider:{provider.slug}")
    if filled is None:
        raise ConfigInvalid(
            f'The {what} of the provider "{provider.slug}" refers to a value that does not exist: {text}.',
            remedy=LISTED,
        )
    return filled


def _address(provider: Provider) -> str:
    if provider.kind == ProviderKind.SCRIPTED and not provider.base_url:
        return resident()
    if provider.kind == ProviderKind.OLLAMA:
        return native_ollama(provider.base_url or _OLLAMA)
    return provider.base_url


def native_ollama(url: str) -> str:
    """The root that its own API hangs from: without ``/v1`` (OpenAI's dialect) or ``/api`` at the
    end."""
    url = url.rstrip("/")
    for ending in ("/v1", "/api"):
        url = url.removesuffix(ending)
    return url


def _headers(provider: Provider) -> dict[str, str]:
    own = {
        str(name): _fill_references(provider, str(value), f"header {name}")
        for name, value in provider.headers.items()
    }
    return (
        {"HTTP-Referer": settings.SITE_URL, **_ATTRIBUTION, **own}
        if provider.kind == ProviderKind.OPENROUTER
        else own
    )
