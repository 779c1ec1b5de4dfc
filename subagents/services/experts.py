"""What happens to expert tools: saved with a new version whenever something that matters has changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jsonschema_rs
from django.db import transaction

from mcpregistry.domain.canonical import canonical, digest
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.formats.slipsnisse import input_schema
from mcpregistry.domain.schema import check_schema
from mcpregistry.models import Agent
from mcpregistry.services import access, audit
from mcpregistry.services.records import save_checked
from subagents.models import ExpertTarget, ExpertTool, ExpertVersion, LanguageModel
from subagents.models.expert import OnDeath

AGENT_PREFIX = "expert."


@transaction.atomic
def save_expert(*, expert: ExpertTool, targets: Sequence[LanguageModel], actor: str) -> ExpertTool:
    """Save the tool with its models in order of fallback. Raises ConfigInvalid naming what is wrong.

    A new tool gets an agent of its own: grant that agent what the tool may use. Runs that are under way
    go on with the version that they began with.
    """
    kind = "expert.changed" if expert.pk else "expert.created"
    _check_schemas(expert)
    _check_targets(expert, targets)
    if not expert.pk:
        expert.agent = _identity(expert.name, actor)
    save_checked(expert)
    _order(expert, targets)
    version = _version(expert, targets)
    audit.record(kind=kind, actor=actor, subject=f"expert:{expert.name}", version=version.number)
    return expert


def _identity(name: str, actor: str) -> Agent:
    slug = f"{AGENT_PREFIX}{name}".replace("__", "_")[:63]
    agent = Agent(slug=slug, name=f"Expert tool {name}", description="Makes the calls of this expert tool's runs.")
    return access.save_agent(agent=agent, actor=actor)


def _check_schemas(expert: ExpertTool) -> None:
    for field, schema in (("arguments", schema_of(expert)), ("output schema", expert.output_schema)):
        if schema is None:
            continue
        try:
            check_schema(schema)
            jsonschema_rs.validator_for(schema)
        except (ValueError, ConfigInvalid) as error:
            raise ConfigInvalid(f"The {field} cannot be used: {error}", remedy="Write a JSON Schema.") from error


def schema_of(expert: ExpertTool) -> dict[str, Any]:
    """The input schema, whichever notation the arguments are in."""
    if not isinstance(expert.arguments, dict):
        raise ConfigInvalid("The arguments must be an object.", remedy='Write e.g. {"query": {"type": "string"}}.')
    return input_schema(expert.arguments)


def _check_targets(expert: ExpertTool, targets: Sequence[LanguageModel]) -> None:
    if not targets:
        raise ConfigInvalid("The tool has no model to ask.", remedy="Choose at least one.")
    unpriced = [str(model) for model in targets if not model.priced]
    if expert.max_cost is not None and unpriced:
        raise ConfigInvalid(
            f"A money budget needs prices, and these models have none: {', '.join(unpriced)}.",
            remedy="Enter their prices, mark them as free, or leave the budget empty.",
        )


def _order(expert: ExpertTool, targets: Sequence[LanguageModel]) -> None:
    ExpertTarget.objects.filter(expert=expert).delete()
    ExpertTarget.objects.bulk_create(
        ExpertTarget(expert=expert, model=model, order=order) for order, model in enumerate(targets)
    )


def _version(expert: ExpertTool, targets: Sequence[LanguageModel]) -> ExpertVersion:
    """The newest version, if nothing has changed since; else a new one."""
    body = canonical(_body(expert, targets))
    newest = expert.versions.first()
    if newest is not None and newest.body == body:
        return newest
    number = newest.number + 1 if newest else 1
    return ExpertVersion.objects.create(expert=expert, number=number, hash=digest(body), body=body)


def _body(expert: ExpertTool, targets: Sequence[LanguageModel]) -> dict[str, Any]:
    return {
        "name": expert.name,
        "description": expert.description,
        "input_schema": schema_of(expert),
        "system_prompt": expert.system_prompt,
        "targets": [model.pk for model in targets],
        "max_steps": expert.max_steps,
        "max_seconds": expert.max_seconds,
        "max_tokens": expert.max_tokens,
        "max_cost": None if expert.max_cost is None else str(expert.max_cost),
        "max_energy": expert.max_energy,
        "max_calls": expert.max_calls,
        "parallelism": expert.parallelism,
        "output_schema": expert.output_schema,
        "tool_instructions": expert.tool_instructions,
        "fail_on_server_death": expert.on_server_death == OnDeath.FAIL,
        "max_result_bytes": expert.max_result_bytes,
        "temperature": expert.temperature,
    }
