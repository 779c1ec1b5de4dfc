"""What happens to expert tools: saved with a new version whenever something that matters has
changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from mcpregistry.domain import error_texts
from mcpregistry.domain.caller_rights import Rights, deny_all_rights
from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.schema.validation import check_schema
from mcpregistry.domain.text.canonical import encode_canonical_json, hash_parts
from mcpregistry.models import Agent, Endpoint, Grant, Server, Tool
from mcpregistry.services.access import grants
from mcpregistry.services.access.agents import save_agent
from mcpregistry.services.configuration.dependents import end_dependents
from mcpregistry.services.configuration.rule_inputs import check_rule_inputs
from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.records import audit
from subagents.domain.expert_chains import MAX_DEPTH, leads_back, longest_through
from subagents.domain.maintenance import MODELLED
from subagents.models import ExpertTarget, ExpertTool, ExpertVersion, LanguageModel, Run
from subagents.models.expert import OnDeath

AGENT_PREFIX = "expert."


@transaction.atomic
def save_expert(
    *,
    expert: ExpertTool,
    targets: Sequence[LanguageModel],
    actor: str,
    rights: Rights = deny_all_rights,
) -> ExpertTool:
    """Save the tool with its models in order of fallback.

    Raises ConfigInvalid naming what is wrong, and Denied as ``check_rule_inputs``.

    A new tool without an agent gets one of its own: grant that agent what the tool may use. Runs
    that are under way go on with the version that they began with.
    """
    kind = "expert.created" if expert._state.adding else "expert.changed"
    before = take_current(expert)
    _check_schemas(expert)
    _check_targets(expert, targets)
    _check_awaited(expert)
    _check_maintains(expert)
    check_rule_inputs(expert, before, rights=rights)
    if expert._state.adding and not expert.agent_id:
        expert.agent = _identity(expert.name, actor)
    save_checked(expert)
    _order(expert, targets)
    version = _save_version(expert, targets)
    audit.record_entry(
        kind=kind, actor=actor, subject=f"expert:{expert.name}", version=version.number
    )
    return expert


def _identity(name: str, actor: str) -> Agent:
    slug = f"{AGENT_PREFIX}{name}".replace("__", "_")[:63]
    agent = Agent(
        slug=slug,
        name=f"Expert tool {name}",
        description="Makes the calls of this expert tool's runs.",
    )
    return save_agent(agent=agent, actor=actor)


def _check_schemas(expert: ExpertTool) -> None:
    for field, schema in (
        ("arguments", schema_of(expert)),
        ("output schema", expert.output_schema),
    ):
        if schema is None:
            continue
        try:
            check_schema(schema)
        except ConfigInvalid as error:
            raise ConfigInvalid(
                f"The {field} is not valid: {error}", remedy="Enter a valid JSON Schema."
            ) from error


def schema_of(expert: ExpertTool) -> dict[str, Any]:
    """The tool's input schema, whichever notation its arguments are in."""
    if not isinstance(expert.arguments, dict):
        raise ConfigInvalid(
            "The description of the arguments is not a JSON object.",
            remedy=error_texts.advise_form(
                "a JSON object with a schema for each argument", '{"query": {"type": "string"}}'
            ),
        )
    # brings YAML along, which runmcp can do without
    from mcpregistry.domain.formats.slipsnisse import build_input_schema

    return build_input_schema(expert.arguments)


def text_parameter(expert: ExpertTool) -> str:
    """The argument of the expert tool that takes what was said. Raises ConfigInvalid when there is
    no such one."""
    schema = schema_of(expert)
    texts = [
        name for name, each in schema.get("properties", {}).items() if each.get("type") == "string"
    ]
    required = schema.get("required") or texts[:1]
    if len(required) != 1 or required[0] not in texts:
        raise ConfigInvalid(
            f'The expert tool "{expert.name}" cannot be used here, because its only required argument is not a text argument.',
            remedy=error_texts.advise_form(
                "one required argument of the type string", '{"text": {"type": "string"}}'
            ),
        )
    return str(required[0])


def _check_targets(expert: ExpertTool, targets: Sequence[LanguageModel]) -> None:
    if not targets:
        raise ConfigInvalid("The expert tool has no model.", remedy="Choose at least one model.")
    unpriced = [str(model) for model in targets if not model.priced]
    if expert.max_cost is not None and unpriced:
        raise ConfigInvalid(
            f"A money budget requires prices, but these models have none: {', '.join(unpriced)}.",
            remedy="On the pages of these models, enter the prices or enable Free. Or leave the budget empty.",
        )


def _order(expert: ExpertTool, targets: Sequence[LanguageModel]) -> None:
    ExpertTarget.objects.filter(expert=expert).delete()
    ExpertTarget.objects.bulk_create(
        ExpertTarget(expert=expert, model=model, order=order) for order, model in enumerate(targets)
    )


def _save_version(expert: ExpertTool, targets: Sequence[LanguageModel]) -> ExpertVersion:
    """The newest version, if nothing has changed since; else a new one."""
    body = encode_canonical_json(_body(expert, targets))
    newest = expert.versions.first()
    if newest is not None and newest.body == body:
        return newest
    number = newest.number + 1 if newest else 1
    return ExpertVersion.objects.create(
        expert=expert, number=number, hash=hash_parts(body), body=body
    )


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
        "parallel": expert.parallel,
        "output_schema": expert.output_schema,
        "tool_instructions": expert.tool_instructions,
        "fail_on_server_death": expert.on_server_death == OnDeath.FAIL,
        "max_result_bytes": expert.max_result_bytes,
        "temperature": expert.temperature,
    }


def whitelist(expert: ExpertTool) -> list[Tool]:
    """The tools that are granted one by one; servers granted as a whole are not in it."""
    return load_whitelists([expert])[expert.pk]


def load_whitelists(found: Sequence[ExpertTool]) -> dict[int, list[Tool]]:
    """The same of several expert tools, by their ids, in one query; each tool with its server."""
    tools: dict[int, dict[int, Tool]] = {expert.agent_id: {} for expert in found}
    plain = Grant.objects.filter(agent__in=tools, tool__isnull=False, argument_pins={})
    for row in plain.select_related("tool__server").order_by("tool__server__slug", "tool__name"):
        assert row.agent_id is not None  # that is what was asked for
        assert row.tool is not None
        tools[row.agent_id].setdefault(row.tool.pk, row.tool)
    return {expert.pk: list(tools[expert.agent_id].values()) for expert in found}


def _check_awaited(expert: ExpertTool) -> None:
    names = expert.awaited_tools
    if not isinstance(names, list) or not all(
        isinstance(name, str) and "::" in name for name in names
    ):
        raise ConfigInvalid(
            "The field Awaited tools must be a list of names.",
            remedy=error_texts.advise_form(
                "a list of names in the form server::tool", '["git::git_log"]'
            ),
        )


def _check_maintains(expert: ExpertTool) -> None:
    """For each kind of requests there is one expert tool at most, and it takes what it is told as
    one text."""
    known = [str(kind) for kind in MODELLED]
    if not isinstance(expert.maintains, list) or not set(expert.maintains) <= {*known}:
        raise ConfigInvalid(
            "The field Maintenance requests contains a type of request that expert tools cannot handle.",
            remedy=f"Choose from {', '.join(known)}.",
        )
    if expert.maintains:
        text_parameter(expert)
    for other in ExpertTool.objects.exclude(pk=expert.pk).exclude(maintains=[]).order_by("name"):
        if both := sorted({*other.maintains} & {*expert.maintains}):
            raise ConfigInvalid(
                f'The expert tool "{other.name}" already handles these maintenance requests: {", ".join(both)}.',
                remedy="Remove them from the field Maintenance requests of that expert tool first.",
            )


@transaction.atomic
def grant_awaited(server: Server, names: Sequence[str]) -> None:
    """Grant tools that a server offers for the first time, or again, to the whitelists that wait
    for them."""
    offered = {f"{server.slug}::{name}" for name in names}
    # Locked: two servers may be observed at once, and neither may write back what the other has
    # just granted.
    awaiting = ExpertTool.objects.exclude(awaited_tools=[]).select_related("agent").order_by("pk")
    awaiting = awaiting.select_for_update(of=("self",))
    waiting = [expert for expert in awaiting if offered & {*expert.awaited_tools}]
    if not waiting:
        return
    there = Tool.objects.filter(server=server, name__in=names).select_related("server")
    tools = {f"{server.slug}::{tool.name}": tool for tool in there}
    awaited = [(expert, key) for expert in waiting for key in expert.awaited_tools]
    grants.grant_tools(
        (expert.agent, tools[key], f"whitelist of {expert.name}")
        for expert, key in awaited
        if key in tools
    )
    for expert in waiting:
        expert.awaited_tools = [key for key in expert.awaited_tools if key not in tools]
    # No history: nobody has edited them, and the grants stand in the audit log.
    ExpertTool.objects.bulk_update(waiting, ["awaited_tools"])


@transaction.atomic
def set_whitelist(*, expert: ExpertTool, tools: Iterable[Tool], actor: str) -> None:
    """Grant exactly these tools one by one. Raises ConfigInvalid for one that its server no longer
    offers."""
    wanted = {tool.pk: tool for tool in [*tools, *_take_arrived_tools(expert)]}
    gone = [str(tool) for tool in wanted.values() if not tool.present]
    if gone:
        raise ConfigInvalid(
            f"These tools are no longer offered by their servers: {', '.join(gone)}.",
            remedy="Remove them from the tools of the expert tool.",
        )
    plain = Grant.objects.filter(
        agent=expert.agent, tool__isnull=False, argument_pins={}, expires_at=None
    )
    for grant in plain.select_related("tool__server", "agent", "endpoint", "server"):
        if grant.tool_id not in wanted:
            grants.withdraw_grant(grant=grant, actor=actor)
    grants.grant_tools((expert.agent, tool, actor) for tool in wanted.values())


def _take_arrived_tools(expert: ExpertTool) -> list[Tool]:
    """Awaited tools that are there already; they are awaited no longer."""
    keys = {key: key.partition("::") for key in expert.awaited_tools}
    there = Tool.objects.filter(
        present=True, server__slug__in={slug for slug, _, _ in keys.values()}
    )
    found = {f"{tool.server.slug}::{tool.name}": tool for tool in there.select_related("server")}
    arrived = [found[key] for key in keys if key in found]
    if arrived:
        take_current(expert)
        expert.awaited_tools = [key for key in expert.awaited_tools if key not in found]
        expert.save(update_fields=["awaited_tools"])
    return arrived


@transaction.atomic
def delete_expert(*, expert: ExpertTool, actor: str, rights: Rights = deny_all_rights) -> None:
    """Delete the tool with its agent and its whitelist, which are the agent's grants.

    Raises ``Conflict`` while runs of it are kept: switch it off instead. Also raises Conflict as
    ``end_dependents``.
    """
    if Run.objects.filter(version__expert=expert).exists():
        raise Conflict(
            "The expert tool cannot be deleted while its runs are recorded.",
            remedy="Disable it instead. Retention deletes the runs later.",
        )
    agent = expert.agent
    end_dependents(expert, actor=actor, rights=rights)
    end_dependents(agent, actor=actor, rights=rights, own=[Grant])
    audit.record_entry(kind="expert.deleted", actor=actor, subject=f"expert:{expert.name}")
    expert.delete()
    agent.delete()


@transaction.atomic
def offer(
    *, expert: ExpertTool, agents: Iterable[Agent], endpoints: Iterable[Endpoint], actor: str
) -> None:
    """Say which agents may call the tool, and on which endpoints it is listed.

    Raises ``ConfigInvalid`` for experts that would call each other in a circle, or too deep.
    """
    users = list(agents)
    places = list(endpoints)
    _refuse_chain(expert, users)
    with _suspend_history(expert, unless={*expert.endpoints.all()} == {*places}):
        expert.users.set(users)
    expert.endpoints.set(places)
    audit.record_entry(
        kind="expert.offered",
        actor=actor,
        subject=f"expert:{expert.name}",
        agents=[agent.slug for agent in users],
        endpoints=sorted(endpoint.slug for endpoint in places),
    )


@contextmanager
def _suspend_history(expert: ExpertTool, *, unless: bool) -> Iterator[None]:
    """What follows makes the row of history that tells of both."""
    if unless:
        yield
        return
    # read by django-simple-history
    expert.skip_history_when_saving = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del expert.skip_history_when_saving  # type: ignore[attr-defined]


def _refuse_chain(expert: ExpertTool, users: Iterable[Agent]) -> None:
    """Refused when saved, because a run would find out only in the middle."""
    callers = _find_callers(expert, users)
    if leads_back(expert.name, callers):
        raise ConfigInvalid(
            f'The expert tool "{expert.name}" would call itself through other expert tools.',
            remedy="Remove the agents of other expert tools from the field Agents (under Callers) of this expert tool.",
        )
    chain = longest_through(expert.name, callers)
    if len(chain) > MAX_DEPTH:
        raise ConfigInvalid(
            f"A chain of expert tools can have at most {MAX_DEPTH} levels, but this chain has {len(chain)}: "
            f"{' > '.join(chain)}.",
            remedy="Shorten the chain. For example, if it contains A > B, open B, and remove the agent of A from the agents that can call B.",
        )


def _find_callers(expert: ExpertTool, users: Iterable[Agent]) -> dict[str, list[str]]:
    """The experts that may call each expert, by name, as it will be once ``users`` may call this
    one."""
    pairs = ExpertTool.users.through.objects.filter(agent__expert__isnull=False).exclude(
        experttool=expert
    )
    callers: dict[str, list[str]] = {}
    for callee, caller in pairs.values_list("experttool__name", "agent__expert__name"):
        callers.setdefault(callee, []).append(caller)
    above = ExpertTool.objects.filter(agent__in=[agent.pk for agent in users])
    callers[expert.name] = list(above.values_list("name", flat=True))
    return callers
