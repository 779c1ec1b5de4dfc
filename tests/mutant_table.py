"""Small faults in the lines on which everything rests. The tests must notice each of them
(``tests/mutants.py`` runs them).

A mutant is an exact piece of source and its replacement. If the piece is not in its file exactly
once, that is an error, so whoever rewrites such a line rewrites its mutant as well. Of its tests,
those come first that are likely to notice it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]

    def problem(self, root: Path) -> str:
        """Why it cannot be applied; "" if it can."""
        times = (
            (root / self.path).read_text().count(self.before) if (root / self.path).exists() else 0
        )
        return (
            ""
            if times == 1
            else f"{self.name}: its source is in {self.path} {times} times, not once"
        )


def _of(path: str, tests: str, *mutants: tuple[str, str, str]) -> list[Mutant]:
    return [
        Mutant(name, path, before, after, tuple(tests.split())) for name, before, after in mutants
    ]


MUTANTS = [
    *_of(
        "mcpregistry/services/upkeep/process_lease.py",
        "tests/services/test_processes.py",
        (
            "dead processes: whoever has just come back judges",
            "now - self._steady_since >= processes.LEASE",
            "now >= self._steady_since",
        ),
        (
            "dead processes: an outage is no gap",
            "timedelta() <= now - self._last <= LONGEST_GAP",
            "timedelta() <= now - self._last",
        ),
    ),
    *_of(
        "mcpregistry/services/upkeep/reaping.py",
        "tests/services/test_processes.py",
        (
            "dead processes: their namesakes end too",
            'return _end_calls_of(f"{process.pk}.", now',
            'return _end_calls_of(process.pk.rpartition(":")[0], now',
        ),
    ),
    *_of(
        "mcpregistry/calls/pipeline.py",
        "tests/calls/test_pipeline.py tests/calls/test_claims.py tests/calls/test_approvals.py tests/calls/test_budgets.py",
        (
            "pipeline: crash in judging lets through",
            "            refusal = Denied(CRASHED, remedy=_ASK)\n        call = Call(",
            "            refusal = None\n        call = Call(",
        ),
        (
            "pipeline: asking is skipped",
            "is_held = afforded.decision.outcome is RuleOutcome.ASK",
            "is_held = False",
        ),
        ("pipeline: rate is free", "await self.rates.take(call.request.catalogue.agent)", "pass"),
        (
            "pipeline: budgets are not asked",
            "afforded = await budgets.reserve(call)",
            "afforded = call",
        ),
    ),
    *_of(
        "mcpregistry/calls/execution.py",
        "tests/calls/test_pipeline.py tests/calls/test_claims.py tests/calls/test_approvals.py tests/calls/test_budgets.py",
        (
            "execution: cancelled means not sent",
            "state = InvocationState.UNKNOWN if sent else InvocationState.NOT_SENT\n            self._end_soon",
            "state = InvocationState.NOT_SENT\n            self._end_soon",
        ),
        (
            "execution: failed means not sent",
            "InvocationState.UNKNOWN if error.sent else InvocationState.NOT_SENT,\n",
            "InvocationState.NOT_SENT,\n",
        ),
        (
            "execution: a tool's error is success",
            'InvocationState.TOOL_ERROR if result.get("isError") else InvocationState.SUCCEEDED',
            "InvocationState.SUCCEEDED",
        ),
    ),
    *_of(
        "mcpregistry/calls/stages.py",
        "tests/calls/test_pipeline.py tests/calls/test_live_policy.py",
        (
            "stages: access is not asked",
            "if not granted(\n        agent,",
            "if False and not granted(\n        agent,",
        ),
        ("stages: a denial is ignored", "if decision.outcome is RuleOutcome.DENY:", "if False:"),
    ),
    *_of(
        "mcpregistry/calls/recording/ledger.py",
        "tests/calls/test_recorder.py tests/calls/test_claims.py tests/calls/test_approvals_changed.py",
        (
            "claim: any state",
            "AND state = '{InvocationState.READY.value}' AND binding = %s ",
            "AND state <> '{InvocationState.VOID.value}' AND binding = %s ",
        ),
        ("claim: any binding", 'AND binding = %s "', 'AND binding <> %s "'),
        ("claim: any fence", 'f"AND fence = %s AND EXISTS', 'f"AND fence >= %s AND EXISTS'),
        ("claim: too late", 'r.execute_by > %s) "', 'r.execute_by <> %s) "'),
        ("claim: any configuration", 'WHERE id = 1) = %s"', 'WHERE id = 1) >= %s"'),
        (
            "ledger: everybody wins",
            ".rowcount == 1\n            for values",
            ".rowcount < 2\n            for values",
        ),
    ),
    *_of(
        "mcpregistry/calls/recording/recorder.py",
        "tests/calls/test_recorder.py",
        (
            "recorder: no bound",
            "if item.begin and self._waiting.qsize() >= MAX_WAITING:",
            "if False:",
        ),
        (
            "recorder: open when closing",
            "if self._closing or self._loop is None:",
            "if self._loop is None:",
        ),
        (
            "recorder: one bad row spoils all",
            "if len(batch) == 1 or is_passing(error):",
            "if True:",
        ),
        (
            "recorder: a failure is success",
            "if error is None:\n                    item.done",
            "if True:\n                    item.done",
        ),
    ),
    *_of(
        "mcpregistry/calls/recording/backlog.py",
        "tests/calls/test_backlog.py",
        ("backlog: what is refused for now is lost", "if is_passing(error):", "if False:"),
        (
            "backlog: one bad end spoils all",
            "        if len(group) == 1:\n            self._length -= 1",
            "        if True:\n            self._length -= len(group)",
        ),
    ),
    *_of(
        "mcpregistry/services/records/ending.py",
        "tests/calls/test_recorder.py tests/services/test_reaping.py tests/calls/test_told.py tests/fault/test_late_ends.py",
        (
            "ending: any fence",
            "WHERE id = %s AND fence = %s AND state = %s AND {",
            "WHERE id = %s AND fence >= %s AND state = %s AND {",
        ),
        (
            "ending: whatever is unknown",
            "OR {{0}}error_code = '{SUPPOSED}')",
            "OR {{0}}error_code <> '')",
        ),
    ),
    *_of(
        "mcpregistry/services/upkeep/reaping.py",
        "tests/services/test_reaping.py",
        (
            "reaping: a live lease",
            "        pk=call_id, state__in=_ENDS, lease_until__lt=now\n",
            "        pk=call_id, state__in=_ENDS\n",
        ),
    ),
    *_of(
        "mcpregistry/services/approvals/votes.py",
        "tests/services/test_approvals.py tests/calls/test_approvals_changed.py tests/api/test_requester.py",
        ("votes: whoever is switched off", "if not user.is_active:", "if False:"),
        ("votes: who asked", "if told := _explain_own_request(request, user):", 'if told := "":'),
        ("votes: the owner", "if _find_owner_id(request) == user.pk\n", "if False\n"),
        ("votes: without the right", "if not user.has_perm(DECIDE):", "if False:"),
        ("votes: outside the group", "if request.group is not None and not", "if False and not"),
        (
            "votes: decided before",
            "if request.call.state != InvocationState.PENDING:\n        raise",
            "if False:\n        raise",
        ),
        (
            "votes: unseen arguments",
            "if seen and seen != hash_current_arguments(request):",
            "if False:",
        ),
        (
            "votes: one is enough",
            "return len(select_valid_votes(request, list_votes(request))) >= request.quorum",
            "return len(select_valid_votes(request, list_votes(request))) >= 1",
        ),
        (
            "votes: on other bytes",
            "if each.approve and each.arguments_hash == shown]",
            "if each.approve]",
        ),
    ),
    *_of(
        "mcpregistry/services/approvals/edits.py",
        "tests/calls/test_approvals_changed.py",
        ("edits: into a denial", "if decision.outcome is RuleOutcome.DENY:", "if False:"),
        ("edits: into what needs more people", "terms.quorum > request.quorum or", "False or"),
        (
            "edits: beyond the grant",
            "if not may_call(agent, endpoint, tool, arguments, now.timestamp()):",
            "if False:",
        ),
    ),
    *_of(
        "mcpregistry/services/approvals/held_calls.py",
        "tests/calls/test_approvals.py tests/services/test_approvals.py",
        (
            "held: others are left out",
            "waiters.has_waiting_caller(request)\n        or request.run_if_caller_left\n",
            "request.run_if_caller_left\n",
        ),
        (
            "held: never too late to run",
            "request.call.state == InvocationState.READY\n        and request.execute_by is not None\n        and request.execute_by <= now",
            "False",
        ),
    ),
    *_of(
        "mcpregistry/calls/approvals/revalidation.py",
        "tests/calls/test_approvals_changed.py",
        ("revalidation: server", "if server.revision != row.server_revision:", "if False:"),
        (
            "revalidation: definition",
            "if tool.definition_hash != row.definition_hash:",
            "if False:",
        ),
        ("revalidation: record", "if recompute_binding(request) != row.binding:", "if False:"),
        (
            "revalidation: rule that asked",
            "if asked.terms is None or asked.terms.fingerprint != request.rule_fingerprint:",
            "if False:",
        ),
        (
            "revalidation: rule that denies",
            "if decide_at(arguments, now).outcome is RuleOutcome.DENY:",
            "if False:",
        ),
        (
            "revalidation: grant",
            "if not may_call(\n        catalogue.agent",
            "if False and not may_call(\n        catalogue.agent",
        ),
    ),
    *_of(
        "mcpregistry/domain/policy/access.py",
        "tests/domain/test_access.py",
        ("access: expired grants", "if grant.expires_at is None or grant.expires_at > now)", ")"),
        (
            "access: true is 1",
            "return left == right and isinstance(left, bool) == isinstance(right, bool)",
            "return bool(left == right)",
        ),
        (
            "access: any tool of the server",
            "        return grant.tool_id == tool.id\n",
            "        return True\n",
        ),
        ("access: prompts with the tools", ' and grant.kind in (tool.kind, "")', ""),
    ),
    *_of(
        "mcpregistry/downstream/http_client/guard.py",
        "tests/downstream/test_http_client.py",
        (
            "guard: private addresses",
            "if parsed is None or not is_allowed(parsed, self._networks):",
            "if parsed is None:",
        ),
        ("guard: the last gate", "self.check_address(str(address[0]))", "str(address[0])"),
    ),
    *_of(
        "mcpregistry/downstream/http_client/client.py",
        "tests/downstream/test_http_client.py",
        (
            "guard: redirects",
            "if get_origin(location) != get_origin(url) or reply.status",
            "if reply.status",
        ),
    ),
    *_of(
        "subagents/leased/leases.py",
        "tests/subagents/runs/test_records.py tests/subagents/runs/test_crashes.py",
        (
            "lease: held ones",
            'Q(lease_until=None) | Q(lease_until__lt=Given("now", like="lease_until")),',
            "Q(),",
        ),
        (
            "lease: fence stands still",
            'fence=F("fence") + 1,\n            idle_since=None',
            'fence=F("fence"),\n            idle_since=None',
        ),
    ),
    *_of(
        "mcpregistry/services/records/chains.py",
        "tests/services/test_chains.py tests/services/test_verification.py",
        ("chains: an entry out of line", "elif entry.prev != before.head:", "elif False:"),
        ("chains: a gap", "if entry.seq != before.seq + 1:", "if False:"),
        ("chains: a keyless entry", "if not entry.key_id:", "if False:"),
        (
            "chains: a changed text",
            "if entry.hash != entry_hash(entry.prev, entry.body, entry.key_id):",
            "if False:",
        ),
        (
            "chains: a changed column",
            'return "" if _are_columns_consistent(entry) else',
            'return "" if True else',
        ),
    ),
    *_of(
        "mcpregistry/services/records/archiving.py",
        "tests/services/test_archiving.py tests/services/test_archive_faults.py",
        (
            "archive: entries of kept calls go",
            'stays = Q(at__gte=before) | Q(subject__startswith="call:") & Exists(call)',
            "stays = Q(at__gte=before)",
        ),
        ("archive: young entries go", "stays = Q(at__gte=before) | Q(", "stays = Q("),
        ("archive: a chain's last entry goes", "min(upto, newest - 1,", "min(upto, newest,"),
        (
            "archive: what is not sealed goes",
            "min(stand.seq, state.sealed.get(writer, 0))",
            "stand.seq",
        ),
        ("archive: a broken log goes", "    if report.problems:", "    if False:"),
        (
            "archive: the file is not looked at",
            "    if wrong:\n        part.unlink()",
            "    if False:\n        part.unlink()",
        ),
        ("archive: entries are not looked at", "            if problems:", "            if False:"),
        (
            "archive: calls taken by hand go",
            "for problem in signed_calls.find_misfits(",
            "for problem in () and signed_calls.find_misfits(",
        ),
        (
            "archive: somebody else is not noticed",
            "if _select_run_entries(run).delete()[0] != run.entries:",
            "if _select_run_entries(run).delete()[0] < 0:",
        ),
        (
            "archive: what retention has said goes",
            "        if runs:\n            _repeat_retention_entry()",
            "        if False:\n            _repeat_retention_entry()",
        ),
    ),
    *_of(
        "mcpregistry/services/records/archives.py",
        "tests/services/test_archive_tampering.py",
        (
            "archives: signatures are not asked",
            "if not verify_signature(record.key_id",
            "if False and not verify_signature(record.key_id",
        ),
        ("archives: gaps in the records", "if record.number != number + 1:", "if False:"),
        (
            "archives: any entry is held",
            "        if seq > self.get_stand(writer).seq:\n            return False",
            "",
        ),
        ("archives: any hash is held", "return known.hex() == head", "return True"),
    ),
    *_of(
        "mcpregistry/services/records/archive_files.py",
        "tests/services/test_archive_tampering.py",
        (
            "archive files: missing ones are not said",
            "in by_digest.keys() - read_already - replaced:",
            "in ():",
        ),
        (
            "archive files: replaced ones are not said",
            "if digests.get(path.name, digest) != digest:",
            "if False:",
        ),
        (
            "archive files: what is in no record is not said",
            "if there.get((writer, seq)) != head and not known.has_entry(writer, seq, head):",
            "if False:",
        ),
    ),
    *_of(
        "mcpregistry/models/guards.py",
        "tests/services/test_archive_tampering.py tests/models/test_guards.py",
        (
            "guards: any archived chain may be shortened",
            "OLD.seq BETWEEN from_seq AND to_seq",
            "OLD.seq >= from_seq",
        ),
    ),
    *_of(
        "mcpregistry/services/records/verification.py",
        "tests/services/test_verification.py",
        (
            "verification: a forged note",
            'if not verify_signature(row.key_id, "verified", row.state, row.hash):',
            "if False:",
        ),
        ("verification: only the last heads", "if told.get(item[0]) != item[1]]\n", "if False]\n"),
    ),
    *_of(
        "mcpregistry/services/records/signed_calls.py",
        "tests/calls/test_bound.py",
        (
            "bound: anything fits",
            "return name in signed.digests and found not in signed.digests[name]",
            "return False",
        ),
        (
            "bound: a corrected end",
            "ends = signed.corrections or signed.ends",
            "ends = signed.corrections + signed.ends",
        ),
    ),
    *_of(
        "mcpregistry/services/records/signed_approvals.py",
        "tests/calls/test_bound.py tests/calls/test_unproven_approvals.py",
        ("bound: a vote that is gone", "    if left:\n", "    if False:\n"),
        ("bound: terms", "if asked.get(name) == value or", "if True or"),
        (
            "bound: no approval",
            "    if approval is None:\n",
            "    if approval is None:\n        return\n    if False:\n",
        ),
    ),
    *_of(
        "mcpregistry/services/access/scopes.py",
        "tests/services/test_scopes.py",
        ("scopes: a credential anywhere", "if place not in row.scope:", "if False:"),
        ("scopes: a variable anywhere", "if place not in scope.get(name, ()):", "if False:"),
    ),
    *_of(
        "mcpregistry/services/access/logins.py",
        "tests/web/test_login.py",
        (
            "logins: no lock",
            "row.locked_until = now + PERIOD if row.count >= most else None",
            "row.locked_until = None",
        ),
    ),
    *_of(
        "mcpregistry/services/access/second_factor.py",
        "tests/web/test_second_factor.py",
        (
            "second factor: a code twice",
            "filter(pk=factor.pk, last_step__lt=candidate)",
            "filter(pk=factor.pk)",
        ),
    ),
    *_of(
        "subagents/models/provider.py",
        "tests/subagents/test_where_keys_go.py",
        (
            "provider: any destination",
            "not self.leaves_the_site or self.confirmed_destination == self.destination_hash()",
            "True",
        ),
    ),
    *_of(
        "mcpregistry/services/policy/permits.py",
        "tests/services/test_policy.py tests/calls/test_approvals_changed.py tests/services/test_approvals.py tests/services/test_unproven_permits.py",
        (
            "permits: of a changed tool",
            "        definition_hash=definition_hash,\n        server_revision=server_revision,\n        revoked_at=None",
            "        server_revision=server_revision,\n        revoked_at=None",
        ),
        (
            "permits: of a changed server",
            "        definition_hash=definition_hash,\n        server_revision=server_revision,\n        revoked_at=None",
            "        definition_hash=definition_hash,\n        revoked_at=None",
        ),
        (
            "permits: under another rule",
            "        expires_at__gt=now,\n        request__rule_fingerprint=fingerprint,",
            "        expires_at__gt=now,",
        ),
        (
            "permits: of whoever asks",
            "    if requester is not None:\n        live",
            "    if False:\n        live",
        ),
        (
            "permits: with other arguments",
            "if match_pins(permit.argument_pins, arguments) and _can_giver_still_approve(permit)\n",
            "if _can_giver_still_approve(permit)\n",
        ),
        (
            "permits: of a giver without the right",
            "or not giver.is_active or not giver.has_perm(DECIDE)",
            "or not giver.is_active",
        ),
        (
            "permits: of the owner of the agent",
            "if permit.agent.owner_id == giver.pk:",
            "if False:",
        ),
        (
            "permits: of a giver outside of the group",
            "return request.group_id is None or giver.groups.filter(pk=request.group_id).exists()",
            "return True",
        ),
        ("permits: where several must approve", "if request.quorum > 1:", "if False:"),
        (
            "permits: beyond the call at hand",
            "if not match_pins(wish.pins, json.loads(arguments)):",
            "if False:",
        ),
        (
            "permits: used when revoked",
            "filter(pk=permit.pk, revoked_at=None, expires_at__gt=now)\n        uses",
            "filter(pk=permit.pk)\n        uses",
        ),
        ("permits: more uses than given", "uses = live.filter(uses_left__gt=0)", "uses = live"),
        (
            "permits: a use comes back twice",
            "{each.kind for each in told} != {_USED}",
            "_USED not in {each.kind for each in told}",
        ),
        (
            "permits: any is proven",
            "if problem := signed_permits.find_difference(permit):",
            'if problem := "":',
        ),
    ),
    *_of(
        "mcpregistry/services/access/tokens.py",
        "tests/services/test_access.py tests/api/test_auth.py tests/api/test_access.py",
        (
            "tokens: a revoked one",
            "filter(hash=hash_token(raw), revoked_at__isnull=True)",
            "filter(hash=hash_token(raw))",
        ),
        (
            "tokens: an expired one",
            "    live = live.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now()))\n",
            "",
        ),
        ("tokens: of a disabled holder", "return token if owner_active else None", "return token"),
        ("tokens: rotated twice", "if _has_successor(locked):", "if False:"),
        (
            "tokens: a rotated one for ever",
            "update(expires_at=ends)",
            "update(expires_at=locked.expires_at)",
        ),
    ),
    *_of(
        "mcpregistry/services/access/invitations.py",
        "tests/admin/test_invitations.py",
        ("invitations: a used one", "hash=hash_token(raw), used_at=None,", "hash=hash_token(raw),"),
        (
            "invitations: two at once",
            "if not won.update(used_at=now):",
            "if not won.update(used_at=now) and False:",
        ),
        (
            "invitations: of a disabled inviter",
            "inviter.is_active and inviter.has_perms",
            "inviter.has_perms",
        ),
        ("invitations: of a demoted inviter", "and inviter.has_perms(MAY_INVITE)", ""),
        (
            "invitations: an expired one",
            "return rows.filter(expires_at__gt=timezone.now()).select",
            "return rows.select",
        ),
    ),
    *_of(
        "mcpregistry/services/configuration/snapshot.py",
        "tests/services/test_snapshots.py",
        (
            "snapshot: revoked tokens",
            "filter(agent__enabled=True, revoked_at__isnull=True)",
            "filter(agent__enabled=True)",
        ),
        ("snapshot: disabled resources", "if t.enabled and _is_shown(", "if _is_shown("),
        (
            "snapshot: drafts",
            "Server.objects.active().only(*_OF_SERVER)",
            "Server.objects.only(*_OF_SERVER)",
        ),
    ),
    *_of(
        "mcpregistry/domain/snapshot.py",
        "tests/domain/test_snapshot.py",
        (
            "snapshot: expired tokens",
            "if token is None or (token.expires_at is not None and token.expires_at <= now):",
            "if token is None:",
        ),
    ),
    *_of(
        "mcpregistry/models/tool.py",
        "tests/services/test_definitions.py tests/services/test_snapshots.py",
        (
            "tools: a changed definition serves",
            'pinned__isnull=False, latest=models.F("pinned"))',
            "pinned__isnull=False)",
        ),
        (
            "tools: a vanished one serves",
            "return self.filter(present=True, pinned__isnull",
            "return self.filter(pinned__isnull",
        ),
    ),
    *_of(
        "mcpregistry/domain/policy/decision.py",
        "tests/domain/test_policy.py tests/domain/test_rules.py",
        (
            "decision: a broken policy allows",
            'RuleOutcome.DENY, f"the policy could not',
            'RuleOutcome.ALLOW, f"the policy could not',
        ),
        (
            "decision: a rule about one resource allows all",
            "return tool_id == self.row and outcome is not RuleOutcome.ALLOW",
            "return tool_id == self.row",
        ),
    ),
    *_of(
        "mcpregistry/gateway/caller_identity.py",
        "tests/gateway/test_lasting_doors.py tests/gateway/test_http_door.py",
        ("identity: one of two tokens", "if len(found) != 1 or", "if not found or"),
    ),
    *_of(
        "mcpregistry/services/records/idempotency.py",
        "tests/services/test_idempotency.py tests/api/test_calls.py",
        ("idempotency: another request", "if kept.fingerprint != fingerprint:", "if False:"),
        (
            "idempotency: a call that may have run",
            "filter(~Exists(ran), caller=caller",
            "filter(caller=caller",
        ),
        (
            "idempotency: two who find it abandoned",
            "or not abandoned.update(created_at=now)\n",
            "or (not abandoned.update(created_at=now) and False)\n",
        ),
        (
            "idempotency: a process that may still call",
            "        or now - kept.created_at < BEGINS_WITHIN\n",
            "",
        ),
    ),
]
