"""What people and programs do with runs: start, cancel, settle an unknown call, wake."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from mcpregistry.domain import error_texts
from mcpregistry.domain.budgets import name_endpoint_payer
from mcpregistry.domain.calls.requester import NOBODY, Requester
from mcpregistry.domain.errors import ArgumentsInvalid, ConfigInvalid, Conflict, Denied, NotFound
from mcpregistry.domain.lifecycle import TERMINAL
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.domain.schema.validation import check_arguments
from mcpregistry.domain.snapshot_specs import RUNS
from mcpregistry.domain.text.canonical import clean_text, encode_canonical_json
from mcpregistry.models import ApprovalRequest, Invocation
from mcpregistry.services.configuration.dispatch import send_task
from mcpregistry.services.configuration.snapshot import read_current_revision
from mcpregistry.services.records import audit
from subagents.domain.expert_chains import MAX_DEPTH
from subagents.domain.formats import OWN_FORMAT, AnswerFormat
from subagents.domain.lifecycle import OPEN_CALLS, CallState, RunState
from subagents.domain.transcript import failure
from subagents.models import ExpertTool, ExpertVersion, LanguageModel, Run, ToolCall
from subagents.services.readiness import obstacles

CALL = "call"  # the origin of runs that answer the call of their ``call_id``
_LIST_RUNS = "List the runs under Expert tools, Runs, or with GET /api/v1/runs."
SAMPLING = "sampling"  # the origin of runs that answer what a server asked of a model
_BY_AGENTS = (CALL, "rest", SAMPLING)  # origins of runs whose ``caller`` is an agent's name


@transaction.atomic
def start(
    *,
    expert: str,
    arguments: Mapping[str, Any],
    origin: str,
    caller: str = "",
    endpoint: str = "",
    call_id: str = "",
    parent: str = "",
    version: ExpertVersion | None = None,
    replay_of: str = "",
    asks: LanguageModel | None = None,
    requester: Requester = NOBODY,
    conversation: str = "",
    answer_format: AnswerFormat = OWN_FORMAT,
    options: Mapping[str, Any] | None = None,
    traced: bool = False,
) -> Run:
    """Queue a run; a worker is woken once it is committed.

    Raises before anything is spent: ``NotFound``, ``ArgumentsInvalid``, ``Denied`` (too deep, or a
    model, its key or a tool of the whitelist is missing). ``asks``: a model in place of the
    version's own. ``requester``: the person behind it, who may not approve what its calls ask for.
    ``conversation``: the id of that which its calls belong to. ``answer_format``: in which form the
    caller wants the answer. ``options``: of the models, for this run alone; they replace the
    models' own. ``traced``: record its requests to models (``TracedRequest``).
    """
    version = version or _find_newest_version(expert)
    body = json.loads(version.body) | ({"targets": [asks.pk]} if asks else {})
    arguments = _with_defaults(body["input_schema"], arguments)
    _check(version, body, arguments)
    depth = _find_depth(parent, expert)
    requester = requester if requester.id is not None else _find_requester(caller)
    run = Run.objects.create(
        id=secrets.token_hex(16),
        version=version,
        expert_name=body["name"],
        arguments=encode_canonical_json(arguments),
        origin=origin,
        caller=caller,
        endpoint_slug=endpoint,
        call_id=call_id,
        parent_id=parent or None,
        depth=depth,
        replay_of_id=replay_of or None,
        asks=asks,
        requester=clean_text(requester.name, 150),
        requester_id=requester.id,
        conversation_id=conversation or None,
        created_at=timezone.now(),
        revision=read_current_revision(),
        payers=_find_payers(parent, caller if origin in _BY_AGENTS else "", endpoint),
        answer_format=answer_format.format,
        answer_schema=encode_canonical_json(answer_format.schema)
        if answer_format.schema is not None
        else "",
        model_options=encode_canonical_json(options) if options else "",
        is_traced=traced,
    )
    transaction.on_commit(lambda: wake(run.pk))
    return run


def find_reusable_run(
    *,
    expert: str,
    arguments: Mapping[str, Any],
    caller: str,
    tools: str,
    seconds: float,
    now: datetime,
    answer_format: AnswerFormat = OWN_FORMAT,
) -> Run | None:
    """The newest run whose answer may be given again: the same agent asked the same, less than
    ``seconds`` ago.

    Only while nothing at all has been configured otherwise since that run started (grants, rules,
    definitions, servers, the tool itself), while the run's tools are those that it had (``tools``:
    their fingerprint), and never where people were asked about one of its calls: they allowed it
    once.
    """
    version = _find_newest_version(expert)
    asked = encode_canonical_json(
        _with_defaults(json.loads(version.body)["input_schema"], arguments)
    )
    same = Run.objects.filter(
        version=version, arguments=asked, caller=caller, reusable=tools, state=RunState.DONE
    )
    same = same.filter(
        model_options="",
        answer_format=answer_format.format,
        answer_schema=encode_canonical_json(answer_format.schema)
        if answer_format.schema is not None
        else "",
    )
    recent = same.filter(
        finished_at__gt=now - timedelta(seconds=seconds), revision=read_current_revision()
    )
    run = recent.exclude(answer="").order_by("-finished_at").first()
    return None if run is None or _was_approval_asked(run) else run


def _was_approval_asked(run: Run) -> bool:
    made = run.calls.exclude(invocation="").values_list("invocation", flat=True)
    return Invocation.objects.filter(pk__in=list(made), outcome=RuleOutcome.ASK).exists()


def _find_newest_version(expert: str) -> ExpertVersion:
    version = (
        ExpertVersion.objects.filter(expert__name=expert, expert__enabled=True)
        .order_by("-number")
        .first()
    )
    if version is None:
        known = (
            ", ".join(ExpertTool.objects.filter(enabled=True).values_list("name", flat=True)[:20])
            or "none"
        )
        raise NotFound(
            error_texts.say_not_found("expert tool", expert),
            remedy=f"Available expert tools: {known}.",
        )
    return version


def _with_defaults(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What the caller left out and the schema has a default for; the model then need not know of
    defaults."""
    properties = schema.get("properties") or {}
    given = {
        n: p["default"] for n, p in properties.items() if isinstance(p, dict) and "default" in p
    }
    return given | dict(arguments)


def _check(version: ExpertVersion, body: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    check_arguments(body["input_schema"], arguments)
    try:
        encode_canonical_json(arguments)
    except ValueError as error:
        raise ArgumentsInvalid(
            "The arguments contain a number that JSON does not support (NaN or infinity).",
            remedy="Use a finite number.",
        ) from error
    for obstacle in obstacles(version.expert, body["targets"]):
        raise Denied(obstacle.sentence, remedy=obstacle.remedy)


def _find_payers(parent: str, caller: str, endpoint: str) -> str:
    """The agents whose calls have led to the run, and the endpoint by which they came: their
    budgets bear it."""
    above = (
        Run.objects.filter(pk=parent).values_list("payers", flat=True).first() if parent else None
    )
    door = name_endpoint_payer(endpoint) if endpoint not in ("", RUNS.slug) else ""
    return " ".join(dict.fromkeys(filter(None, [*(above or "").split(), caller, door])))


def _find_requester(caller: str) -> Requester:
    """The owner of the agent that starts a run with its own token: its calls are another agent's,
    which has none."""
    owner = User.objects.filter(agents__slug=caller).first() if caller else None
    return Requester(owner.pk, owner.get_username()) if owner else NOBODY


def _find_depth(parent: str, expert: str) -> int:
    """How deep the new run is; refuses what would go round in a circle."""
    names = []
    above = Run.objects.filter(pk=parent).select_related("parent").first() if parent else None
    while above is not None:
        names.append(above.expert_name)
        above = above.parent
    if expert in names:
        raise Denied(
            f'The expert tool "{expert}" calls itself.',
            remedy="In the field Tools of this expert tool, remove the expert tool itself.",
        )
    if len(names) >= MAX_DEPTH:
        raise Denied(
            f"A chain of expert tools can have at most {MAX_DEPTH} levels.",
            remedy="Remove an expert tool from the tools of another expert tool in this chain.",
        )
    return len(names)


def wake(run_id: str) -> None:
    """Tell a worker to look at the run; without a broker the clock finds it within seconds."""
    send_task("subagents.tasks.advance_run", run_id)


def list_due_runs(now: datetime, limit: int = 200) -> list[str]:
    """Ids of open runs that nobody works on and that have something to do; the clock wakes them."""
    free = Q(lease_until=None) | Q(lease_until__lt=now)
    awake = Q(wake_at=None) | Q(wake_at__lte=now)
    return list(
        Run.objects.open()
        .filter(free, awake)
        .order_by("created_at")
        .values_list("pk", flat=True)[:limit]
    )


def wake_decided_runs(limit: int = 200) -> list[str]:
    """Ids of sleeping runs one of whose calls has ended elsewhere meanwhile: held by people, or out
    when they slept.

    The feed of calls and the clock wake them.
    """
    ended = Invocation.objects.filter(pk=OuterRef("invocation"), state__in=[*TERMINAL])
    out = (CallState.WAITING, CallState.STARTED)
    news = ToolCall.objects.filter(Exists(ended), run=OuterRef("pk"), state__in=out)
    asleep = Run.objects.open().filter(lease_until=None, wake_at__isnull=False)
    found = list(asleep.filter(Exists(news)).values_list("pk", flat=True)[:limit])
    asleep.filter(pk__in=found).update(wake_at=None)
    return found


def nudge(run_id: str) -> None:
    """Wake a sleeping run soon, because something that it may wait for has happened."""
    if Run.objects.open().filter(pk=run_id).update(wake_at=None):
        wake(run_id)


def find_abandoned_runs(limit: int = 200) -> list[str]:
    """Ids of open runs whose caller's call has ended without them: nobody will read their
    answer."""
    ended = Invocation.objects.filter(pk=OuterRef("call_id"), state__in=[*TERMINAL])
    found = Run.objects.open().filter(Exists(ended), cancel_requested=False).exclude(call_id="")
    return list(found.values_list("pk", flat=True)[:limit])


def cancel_withdrawn_task(call_id: str) -> None:
    """Cancel the run behind a task that its host gives up."""
    for run_id in Run.objects.open().filter(call_id=call_id).values_list("pk", flat=True):
        cancel(run_id=run_id, actor="caller", reason="the host cancelled its task")


@transaction.atomic
def cancel(*, run_id: str, actor: str, reason: str = "") -> Run:
    """Ask the run to stop; whoever works on it does so within a second, a sleeping one at once.
    Idempotent."""
    run = _lock_run(run_id)
    if run.finished_at is not None:
        return run
    Run.objects.filter(pk=run.pk).update(cancel_requested=True, wake_at=None)
    audit.record_entry(kind="run.cancelled", actor=actor, subject=f"run:{run.pk}", reason=reason)
    transaction.on_commit(lambda: wake(run.pk))
    return run


@transaction.atomic
def settle(
    *, call_id: int, as_what: str, actor: str, user_id: int | None = None, note: str = ""
) -> ToolCall:
    """An operator says what became of an unknown call: ``done``, ``failed``, or ``repeat`` it.

    ``user_id``: the key of the operator's account, by which ``has_settled`` knows them under any
    user name.

    Only while its run is open: an ended run has told its caller already. A call that shall be
    repeated keeps what the model was told of it until it is made. Raises Conflict otherwise, or
    when it could not be made any more.
    """
    call = ToolCall.objects.select_related("run").get(pk=call_id)
    run = _lock_run(call.run_id)
    if run.finished_at is not None:
        raise Conflict(
            error_texts.say_wrong_state("settle a call of", "run", "finished"),
            remedy="Start a new run.",
        )
    if as_what not in _SETTLED:
        raise ConfigInvalid(
            error_texts.say_not_valid(f"{as_what:.40}", "a valid way to settle a call"),
            remedy="Use done (the call took effect), failed (it had no effect) or repeat.",
        )
    if as_what == "repeat":
        _check_repeatable(run, call)
    changed = ToolCall.objects.filter(pk=call_id, state=CallState.UNKNOWN).update(
        **_build_settlement(as_what, note), settled_by=actor, settled_by_id=user_id
    )
    if not changed:
        raise Conflict(
            "The outcome of this call is no longer unknown.",
            remedy="Reload the run to see the outcome.",
        )
    if as_what == "repeat":
        _interrupt(run, call)
    audit.record_entry(
        kind=f"run.call_{as_what}",
        actor=actor,
        subject=f"run:{run.pk}",
        call=call.invocation,
        note=note,
    )
    transaction.on_commit(lambda: wake(run.pk))
    return ToolCall.objects.get(pk=call_id)


def has_settled(request: ApprovalRequest, user: User) -> bool:
    """Whether the person has settled a call of the run that makes this one, or of a run above it:
    then they do not approve it.

    The model reads the note of a settlement, and a repeated call is made because that person wants
    it.
    """
    call = None
    if request.call.origin == "run":
        call = ToolCall.objects.select_related("run").filter(invocation=request.call_id).first()
    run = call.run if call else None
    while run is not None:
        if run.calls.filter(settled_by_id=user.pk).exists():
            return True
        run = run.parent
    return False


_SETTLED = ("done", "failed", "repeat")


def _build_settlement(as_what: str, note: str) -> dict[str, Any]:
    """The columns of the call, and in them what the model will read."""
    if as_what == "repeat":
        return {"state": CallState.PLANNED, "finished_at": None}
    if as_what == "done":
        text = f"(An operator has confirmed that this call took effect. {note}".strip() + ")"
        return {"state": CallState.DONE, "result": text, "is_error": False}
    text = failure(f"an operator has confirmed that this call had no effect. {note}".strip())
    return {"state": CallState.FAILED, "result": text, "is_error": True}


def _check_repeatable(run: Run, call: ToolCall) -> None:
    """Nothing comes back to a turn that the model has answered, and nothing is called by a run that
    concludes."""
    if run.turns.filter(number__gt=call.turn_number).exists():
        raise Conflict(
            "The call cannot be repeated: the run has continued, and its model knows that the outcome is unknown.",
            remedy="Settle the call as done or failed.",
        )
    if run.final_reason or run.cancel_requested:
        raise Conflict(
            "The call cannot be repeated: the run must give its final answer now, and makes no more calls.",
            remedy="Settle the call as done or failed.",
        )


def _interrupt(run: Run, call: ToolCall) -> None:
    """Where all other calls have ended, the model is being asked already: that answer shall not be
    taken.

    Whoever asks loses the run and stops within a second; its next step is the call. While other
    calls are out, it is seen by itself after them, and interrupting would cut them off.
    """
    news: dict[str, Any] = {"wake_at": None}
    if not run.calls.filter(state__in=OPEN_CALLS).exclude(pk=call.pk).exists():
        news |= {"fence": F("fence") + 1, "lease_until": None, "worker": ""}
    Run.objects.filter(pk=run.pk).update(**news)


def _lock_run(run_id: str) -> Run:
    run = Run.objects.select_for_update().filter(pk=run_id).first()
    if run is None:
        raise NotFound(error_texts.say_no_such_number("run", run_id), remedy=_LIST_RUNS)
    return run


@transaction.atomic
def resume(*, run_id: str, actor: str) -> Run:
    """Let a worker look at an open run now, whatever it waits for; it decides by itself what there
    is to do."""
    run = _lock_run(run_id)
    if run.finished_at is not None:
        raise Conflict(
            error_texts.say_wrong_state("resume", "run", "finished"),
            remedy="Replay it to start a new run.",
        )
    Run.objects.filter(pk=run.pk).update(wake_at=None)
    audit.record_entry(kind="run.resumed", actor=actor, subject=f"run:{run.pk}")
    transaction.on_commit(lambda: wake(run.pk))
    return run


@transaction.atomic
def replay(
    *,
    run_id: str,
    actor: str,
    version: int | None = None,
    model: LanguageModel | None = None,
    requester: Requester = NOBODY,
) -> Run:
    """Ask the same question once more, of the newest or another version, or of a model that it
    would not ask.

    To compare cost and answer: every replay hangs on the run that was asked first. Raises as
    ``start`` does, ``Conflict`` when the question is gone, ``NotFound`` for a version (its number)
    that the tool never had, ``ConfigInvalid`` for a model without prices under a money budget.
    """
    old = Run.objects.select_related("version").filter(pk=run_id).first()
    if old is None:
        raise NotFound(error_texts.say_no_such_number("run", run_id), remedy=_LIST_RUNS)
    if old.arguments == "{}" and old.answer == "" and old.state == RunState.DONE:
        raise Conflict(
            "The run cannot be replayed, because retention has deleted its arguments.",
            remedy="Replay a newer run.",
        )
    asked = (
        _find_newest_version(old.expert_name) if version is None else _find_version(old, version)
    )
    _check_prices(asked, model)
    run = start(
        expert=old.expert_name,
        arguments=json.loads(old.arguments),
        origin="replay",
        caller=actor[:63],
        version=asked,
        replay_of=old.replay_of_id or old.pk,
        asks=model,
        requester=requester,
    )
    audit.record_entry(
        kind="run.replayed",
        actor=actor,
        subject=f"run:{run.pk}",
        of=old.pk,
        version=asked.number,
        model=str(model) if model else "",
    )
    return run


def _find_version(run: Run, number: int) -> ExpertVersion:
    version = ExpertVersion.objects.filter(expert=run.version.expert_id, number=number).first()
    if version is None:
        raise NotFound(
            f'The expert tool "{run.expert_name}" has no version {number}.',
            remedy="Choose another version.",
        )
    return version


def _check_prices(version: ExpertVersion, model: LanguageModel | None) -> None:
    if (
        model is not None
        and not model.priced
        and json.loads(version.body).get("max_cost") is not None
    ):
        raise ConfigInvalid(
            f"Runs of this version of the expert tool have a limit in dollars, but the model {model} has no prices.",
            remedy="Enter the prices of the model, or choose another model or another version of the expert tool.",
        )
