"""Rules that the database keeps itself, whoever writes and however; on both databases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, models, transaction
from django.utils import timezone

from mcpregistry.domain.lifecycle import CORRECTIONS, SUPPOSED, TERMINAL, InvocationState
from mcpregistry.models import (
    Agent,
    ApprovalRequest,
    AuditEntry,
    Budget,
    Configuration,
    Credential,
    Definition,
    Endpoint,
    EnergyPool,
    Grant,
    Invocation,
    Permit,
    PolicyRule,
    ProjectFile,
    Server,
    ServerEvent,
    Token,
    Tool,
    Workspace,
)
from mcpregistry.models.guards import (
    drop_guards,
    find_missing_guards,
    install_guards,
    list_watched_tables,
)
from mcpregistry.services.records import audit
from subagents.models import EffortAgent, ExpertTool, Headend

pytestmark = pytest.mark.django_db
NOW = timezone.now()
AUDIT = AuditEntry._meta.db_table
CALLS = Invocation._meta.db_table


def sql(statement: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def refused(statement: str, *values: Any) -> None:
    with pytest.raises(DatabaseError, match=r"append-only|ended call"), transaction.atomic():
        sql(statement, *values)


# -- audit -----------------------------------------------------------------------------------------


@pytest.fixture
def entries() -> list[AuditEntry]:
    for n in range(2):
        audit.record_entry(kind="x", actor="a", subject=f"s{n}")
    return list(AuditEntry.objects.order_by("seq"))


@pytest.mark.attack
@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE {AUDIT} SET body = 'x'",
        f"UPDATE {AUDIT} SET actor = actor",
        f"UPDATE {AUDIT} SET seq = seq + 10 WHERE seq = 2",
        f"DELETE FROM {AUDIT}",
        f"DELETE FROM {AUDIT} WHERE seq = 2",
    ],
)
def test_the_audit_log_cannot_be_changed_or_shortened(entries: list[AuditEntry], statement: str):
    before = list(AuditEntry.objects.values())
    refused(statement)
    assert list(AuditEntry.objects.values()) == before


@pytest.mark.attack
def test_the_audit_log_cannot_be_emptied_or_overwritten(entries: list[AuditEntry]):
    before = list(AuditEntry.objects.values())
    if connection.vendor == "postgresql":
        refused(f"TRUNCATE {AUDIT}")
        refused(
            f"INSERT INTO {AUDIT} SELECT * FROM {AUDIT} ON CONFLICT (id) DO UPDATE SET body = 'x'"
        )
    else:
        # REPLACE deletes the old row without asking delete triggers.
        refused(
            f"REPLACE INTO {AUDIT} SELECT id, writer, seq, at, kind, actor, subject, 'x', prev, hash, key_id FROM {AUDIT}"
        )
        refused(
            f"INSERT OR REPLACE INTO {AUDIT} SELECT NULL, writer, seq, at, kind, actor, subject, 'x', prev, hash, key_id FROM {AUDIT}"
        )
    assert list(AuditEntry.objects.values()) == before


@pytest.mark.attack
def test_the_orm_refuses_too(entries: list[AuditEntry]):
    for forbidden in (entries[0].save, entries[0].delete):
        with pytest.raises(TypeError):
            forbidden()
    for bulk in (
        lambda: AuditEntry.objects.update(kind="y"),
        lambda: AuditEntry.objects.all().delete(),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            bulk()
    assert AuditEntry.objects.count() == 2


def test_two_entries_never_share_a_place_in_a_chain(entries: list[AuditEntry]):
    copy = AuditEntry.objects.values().first()
    copy.pop("id")
    with pytest.raises(DatabaseError), transaction.atomic():
        AuditEntry.objects.create(**copy)


# -- calls -----------------------------------------------------------------------------------------


def call(state: InvocationState, id_: str = "c" * 32) -> Invocation:
    return Invocation.objects.create(
        id=id_,
        state=state,
        agent_slug="a",
        tool_name="t",
        exposed_name="t",
        origin="http",
        writer="w",
        received_at=NOW,
    )


@pytest.mark.attack
@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_an_ended_call_keeps_its_state(state: InvocationState):
    call(state)
    for other in InvocationState:
        if other != state:
            refused(f"UPDATE {CALLS} SET state = %s", other.value)
    sql(f"UPDATE {CALLS} SET state = %s, result = ''", state.value)
    assert Invocation.objects.get().state == state


@pytest.mark.parametrize("state", sorted(set(InvocationState) - TERMINAL))
def test_an_open_call_may_move(state: InvocationState):
    call(state)
    assert Invocation.objects.filter(state=state).update(state=InvocationState.UNKNOWN) == 1


# -- configuration ---------------------------------------------------------------------------------


def revision() -> int:
    return Configuration.objects.get().revision


@pytest.fixture
def rows() -> dict[type[models.Model], Any]:
    """Two rows of every watched model; the first is the one that tests change."""
    found: dict[type[models.Model], Any] = {}
    for n in (2, 1):
        server = Server.objects.create(slug=f"s{n}")
        tool = Tool.objects.create(server=server, name=f"t{n}", first_seen_at=NOW, last_seen_at=NOW)
        Definition.objects.create(tool=tool, hash=f"h{n}", body="{}", seen_at=NOW)
        pool = EnergyPool.objects.create(slug=f"p{n}")
        agent = Agent.objects.create(slug=f"a{n}", energy_pool=pool)
        endpoint = Endpoint.objects.create(slug=f"e{n}")
        found = {
            Server: server,
            Tool: tool,
            Agent: agent,
            Endpoint: endpoint,
            Grant: Grant.objects.create(agent=agent, server=server),
            Token: Token.objects.create(agent=agent, name="n", prefix="p", hash=f"{n}"),
            Workspace: Workspace.objects.create(directory=f"/{n}", endpoint=endpoint, agent=agent),
            ProjectFile: ProjectFile.objects.create(
                directory=f"/{n}", endpoint_slug="e", agent_slug="a", seen_at=NOW
            ),
            Budget: Budget.objects.create(slug=f"b{n}", agent=agent, unit="calls"),
            Credential: Credential.objects.create(name=f"c{n}"),
            PolicyRule: PolicyRule.objects.create(
                name=f"r{n}", approvers=Group.objects.create(name=f"g{n}")
            ),
            Permit: Permit.objects.create(
                agent=agent,
                tool=tool,
                definition_hash=f"h{n}",
                server_revision=1,
                expires_at=NOW,
                request=held(n),
            ),
            **expert_rows(n, agent, endpoint),
        }
    return found | {Configuration: Configuration.load()}


def expert_rows(n: int, user: Agent, endpoint: Endpoint) -> dict[type[models.Model], Any]:
    expert = ExpertTool.objects.create(
        name=f"x{n}", description="d", agent=Agent.objects.create(slug=f"x{n}")
    )
    users = ExpertTool.users.through
    endpoints = ExpertTool.endpoints.through
    spoken = ExpertTool.objects.create(
        name=f"y{n}", description="d", agent=Agent.objects.create(slug=f"y{n}")
    )
    return {
        ExpertTool: expert,
        Headend: Headend.objects.create(slug=f"h{n}", kind="rest", path=f"h{n}", endpoint=endpoint),
        EffortAgent: EffortAgent.objects.create(expert=spoken),
        users: users.objects.create(experttool=expert, agent=user),
        endpoints: endpoints.objects.create(experttool=expert, endpoint=endpoint),
    }


def held(n: int) -> ApprovalRequest:
    row = call(InvocationState.PENDING, f"{n}" * 32)
    return ApprovalRequest.objects.create(id=f"{n}" * 32, call=row, asked_at=NOW, decide_by=NOW)


def another(field: models.Field, value: Any) -> Any:
    """A value that the column does not hold now, as SQL takes it."""
    if field.remote_field is not None:
        return (
            field.remote_field.model._default_manager.exclude(pk=value)
            .values_list("pk", flat=True)
            .first()
        )
    if isinstance(field, models.BooleanField):
        return not value
    if isinstance(field, models.DateTimeField):
        return connection.ops.adapt_datetimefield_value((value or NOW) + timedelta(days=1))
    if isinstance(field, models.JSONField):
        return '["other"]'
    if isinstance(field, models.UUIDField):
        return "f" * 32
    if isinstance(field, models.IntegerField | models.FloatField | models.DecimalField):
        return (value or 0) + 1
    return "other"[: getattr(field, "max_length", None)]


def columns(model: type[models.Model]) -> list[models.Field]:
    every = [field for field in model._meta.local_concrete_fields if not field.primary_key]
    # which is what is counted
    return [field for field in every if (model, field.name) != (Configuration, "revision")]


# Changing these alone would break a rule of the table: a grant has one holder and one object.
EITHER_OR = {
    (Grant, "endpoint"): "agent",
    (Grant, "tool"): "server",
    (Token, "user"): "agent",
    (Budget, "endpoint"): "agent",
}


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.parametrize("model", list(list_watched_tables()), ids=lambda model: model.__name__)
def test_each_column_that_processes_read_raises_the_revision_and_no_other_does(
    rows: dict[type[models.Model], Any], django_user_model: Any, model: type[models.Model]
):
    """Each from the same rows: what one column's change did is taken back before the next."""
    django_user_model.objects.create_user("u")
    found = {}
    for field in columns(model):
        with transaction.atomic():
            found[field.name] = _raised(rows[model], field)
            transaction.set_rollback(True)
    assert found == {field.name: (0 if _unread(model, field) else 1, 0) for field in columns(model)}


def _unread(model: type[models.Model], field: models.Field) -> bool:
    return field.name in list_watched_tables()[model] and (model, field.name) not in EITHER_OR


def _raised(row: models.Model, field: models.Field) -> tuple[int, int]:
    """By how much the revision rises when the column changes, and when it is only written again."""
    model = type(row)
    table = row._meta.db_table
    other = EITHER_OR.get((model, field.name))
    clear = f", {model._meta.get_field(other).column} = NULL" if other else ""
    new = another(field, getattr(row, field.attname))
    before = revision()
    sql(f'UPDATE {table} SET "{field.column}" = %s{clear} WHERE id = %s', new, row.pk)
    changed = revision()
    sql(f'UPDATE {table} SET "{field.column}" = "{field.column}"')
    return changed - before, revision() - changed


def _bulk(rows: dict[type[models.Model], Any]) -> list[tuple[str, int, Callable[[], Any]]]:
    agent = rows[Agent]
    return [
        ("update", 6, lambda: Agent.objects.update(enabled=False)),
        ("bulk_update", 1, lambda: Agent.objects.bulk_update([agent], ["slug"])),
        (
            "bulk_create",
            3,
            lambda: Agent.objects.bulk_create([Agent(slug=f"n{n}") for n in range(3)]),
        ),
        (
            "upsert",
            1,
            lambda: sql(
                "INSERT INTO mcpregistry_agent (slug, name, description, enabled, capabilities, created_at) "
                "SELECT slug, name, description, enabled, capabilities, created_at FROM mcpregistry_agent WHERE id = %s "
                "ON CONFLICT (slug) DO UPDATE SET name = 'upserted'",
                agent.pk,
            ),
        ),
        ("save", 1, lambda: Agent.objects.create(slug="one")),
        ("queryset delete", 1, lambda: Workspace.objects.filter(pk=rows[Workspace].pk).delete()),
        ("cascade", 7, lambda: agent.delete()),
        ("raw delete", 2, lambda: sql("DELETE FROM mcpregistry_grant")),
    ]


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("which", range(8))
def test_every_way_of_writing_counts(rows: dict[type[models.Model], Any], which: int):
    name, changes, write = _bulk(rows)[which]
    rows[Agent].slug = "renamed"
    before = revision()
    write()
    assert revision() - before == changes, name


def test_what_is_merely_seen_does_not_wake_every_process(rows: dict[type[models.Model], Any]):
    before = revision()
    server = rows[Server]
    Server.objects.filter(pk=server.pk).update(
        last_ok_at=NOW, last_error="x", consecutive_failures=3, refreshed_at=NOW
    )
    Token.objects.update(last_used_at=NOW)
    Tool.objects.update(last_seen_at=NOW)
    ServerEvent.objects.create(server=server, at=NOW, kind="x")
    call(InvocationState.SUCCEEDED)
    audit.record_entry(kind="x", actor="a", subject="s")
    assert revision() == before


def test_a_change_that_is_taken_back_raises_nothing(rows: dict[type[models.Model], Any]):
    before = revision()
    with transaction.atomic():
        Agent.objects.update(enabled=False)
        transaction.set_rollback(True)
    assert revision() == before


@pytest.mark.parametrize("new", sorted(InvocationState))
@pytest.mark.parametrize("code", [SUPPOSED, "TIMEOUT", ""])
def test_only_what_was_supposed_of_a_call_gives_way_to_what_is_known(
    code: str, new: InvocationState
):
    row = call(InvocationState.UNKNOWN)
    Invocation.objects.filter(pk=row.pk).update(error_code=code)
    allowed = new is InvocationState.UNKNOWN or (code == SUPPOSED and new in CORRECTIONS)
    with nullcontext() if allowed else pytest.raises(DatabaseError), transaction.atomic():
        Invocation.objects.filter(pk=row.pk).update(state=new)


def test_missing_guards_are_named_and_can_be_put_back():
    assert find_missing_guards() == []
    drop_guards()
    missing = find_missing_guards()
    assert {
        "audit_no_update",
        "audit_no_delete",
        "call_stays_ended",
        "watch_mcpregistry_server_update",
    } <= set(missing)
    install_guards()
    install_guards()
    assert find_missing_guards() == []


def test_there_is_one_configuration():
    with pytest.raises(DatabaseError), transaction.atomic():
        Configuration.objects.create(id=2)
