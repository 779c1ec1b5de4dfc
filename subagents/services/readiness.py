"""What stands in the way of a run, found before anything is spent: models without a key, tools that
are not there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import F, Q
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.launch import fill
from mcpregistry.models import Credential, Tool
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.access.scopes import check_scope
from subagents.models import ExpertTool, LanguageModel, Provider
from subagents.models.provider import ProviderKind

_PAID = (ProviderKind.OPENAI, ProviderKind.ANTHROPIC, ProviderKind.GOOGLE, ProviderKind.OPENROUTER)


_REMOVE = "Remove it from the whitelist."


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One thing that stands in the way, as a sentence, and what to do about it."""

    sentence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}"


def obstacles(expert: ExpertTool, targets: Iterable[int]) -> list[Obstacle]:
    """Everything that a run of the tool would fail over; ``targets``: ids of its models."""
    return [*_check_models(expert, targets), *_check_tools(expert)]


def _check_models(expert: ExpertTool, targets: Iterable[int]) -> list[Obstacle]:
    """One model that can be asked is enough."""
    models = LanguageModel.objects.filter(
        pk__in=list(targets), enabled=True, provider__enabled=True
    )
    found = list(models.select_related("provider"))
    if not found:
        return [
            Obstacle(
                f'All models of the expert tool "{expert.name}", or their providers, are disabled.',
                "In the admin, enable one of these models, and the provider of this model.",
            )
        ]
    problems = [provider_problem(model.provider) for model in found]
    return [] if None in problems else [problem for problem in dict.fromkeys(problems) if problem]


def provider_problem(provider: Provider) -> Obstacle | None:
    """Why the provider cannot be asked; None if it can: its key, then whether its destination is
    confirmed."""
    draft = provider.draft_problem()
    return find_key_problem(provider) or (
        Obstacle(draft.sentence, draft.remedy) if draft else _scope_problem(provider)
    )


def _scope_problem(provider: Provider) -> Obstacle | None:
    try:
        check_scope([provider.key, *provider.headers.values()], f"provider:{provider.slug}")
    except ConfigInvalid as error:
        return Obstacle(error.message, error.remedy)
    return None


def find_key_problem(provider: Provider) -> Obstacle | None:
    """What is wrong with the provider's key; None if nothing is.

    A variable can only be looked up in the process that asks models, so a reference to one counts
    as a key here.
    """
    if not provider.sealed_key:
        if provider.kind not in _PAID or provider.base_url:
            return None
        return Obstacle(
            f'The provider "{provider.slug}" does not have a key.',
            "Enter the key in the admin under Providers, or add key: ${VARIABLE} to the provider in the file.",
        )
    missing: list[str] = []

    def look_up(name: str) -> str:
        value = Credential.objects.filter(name=name).first()
        if value is None or not value.value:
            missing.append(name)
        return "x"

    fill(provider.key, variables={}, credential=look_up)
    if missing:
        return Obstacle(
            f'The key of the provider "{provider.slug}" is the credential "{missing[0]}", which does not have a value.',
            "Enter the value in the admin under Credentials.",
        )
    return None


def _check_tools(expert: ExpertTool) -> list[Obstacle]:
    if expert.awaited_tools:
        names = ", ".join(expert.awaited_tools[:5])
        return [
            Obstacle(
                f"The servers do not offer these tools of the whitelist yet: {names}.",
                "Confirm and test the servers, or remove the tools from the whitelist.",
            )
        ]
    live = Q(grants__agent=expert.agent_id) & (
        Q(grants__expires_at=None) | Q(grants__expires_at__gt=timezone.now())
    )
    serving = Q(
        present=True,
        enabled=True,
        pinned__isnull=False,
        latest=F("pinned"),
        server__lifecycle=Lifecycle.ACTIVE,
    )
    missing = Tool.objects.filter(live).exclude(serving).select_related("server").distinct()[:5]
    return [_of_tool(tool) for tool in missing]


def _of_tool(tool: Tool) -> Obstacle:
    if tool.server.lifecycle != Lifecycle.ACTIVE:
        state = "a draft" if tool.server.lifecycle == Lifecycle.DRAFT else "disabled"
        return Obstacle(
            f"{tool} is on the whitelist, but its server is {state}.",
            "Confirm or enable the server, or remove the tool from the whitelist.",
        )
    if not tool.present:
        return Obstacle(f"{tool} is on the whitelist, but its server no longer offers it.", _REMOVE)
    if not tool.enabled:
        return Obstacle(
            f"{tool} is on the whitelist, but it is disabled.",
            "Enable it, or remove it from the whitelist.",
        )
    return Obstacle(
        f"{tool} is on the whitelist, but its definition waits for approval.",
        "Approve or reject the definition under Approvals, Definitions, or remove the tool from the whitelist.",
    )
