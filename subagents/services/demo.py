"""The demo's expert tool, on a scripted model, so that it runs without a key. Made with the
ordinary verbs."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction

from mcpregistry.models import Agent, Endpoint, Tool
from subagents.models import ExpertTool, LanguageModel, Provider
from subagents.models.provider import ProviderKind
from subagents.services import experts, providers

NAME = "research_repository"
_TOOLS = (("git", "git_status"), ("git", "git_log"), ("time", "get_current_time"))


@transaction.atomic
def set_up(*, actor: str) -> ExpertTool | None:
    """Make the demo's expert tool; called by ``controlplane.first_run``.

    None, with nothing changed, when the demo's servers are not there or the tool is already.
    """
    tools = [Tool.objects.filter(server__slug=server, name=name).first() for server, name in _TOOLS]
    found = [tool for tool in tools if tool is not None]
    agent = Agent.objects.filter(slug="local").first()
    endpoint = Endpoint.objects.filter(slug="default").first()
    if (
        len(found) < len(_TOOLS)
        or agent is None
        or endpoint is None
        or ExpertTool.objects.filter(name=NAME).exists()
    ):
        return None
    expert = experts.save_expert(
        expert=ExpertTool(
            name=NAME,
            description="Looks at this repository and answers a question about its state and latest commits. "
            "(Demo: its model follows a script.)",
            arguments={
                "question": {"type": "string", "description": "The question to answer."},
                "repository": {
                    "type": "string",
                    "default": str(settings.BASE_DIR),
                    "optional": True,
                },
            },
        ),
        targets=[_find_or_create_model(actor)],
        actor=actor,
    )
    experts.set_whitelist(expert=expert, tools=found, actor=actor)
    experts.offer(expert=expert, agents=[agent], endpoints=[endpoint], actor=actor)
    return expert


def _find_or_create_model(actor: str) -> LanguageModel:
    provider = Provider.objects.filter(slug="scripted").first() or providers.save_provider(
        provider=Provider(slug="scripted", kind=ProviderKind.SCRIPTED), actor=actor
    )
    return LanguageModel.objects.filter(
        provider=provider, name=NAME
    ).first() or providers.save_model(
        model=LanguageModel(provider=provider, name=NAME, free=True, context_window=128_000),
        actor=actor,
    )
