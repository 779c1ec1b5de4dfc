"""What a trial's findings mean, and what is proposed because of them. It decides nothing: a person
does.

Verdicts: ``refuse`` (it does not start, or means harm), ``attention`` (somebody should read the
findings), ``ok``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mcpregistry.domain.definitions.findings import Severity
from mcpregistry.domain.servers.state import list_acting_names
from mcpregistry.domain.text.display import number_of
from mcpregistry.domain.trials.report import ProposedToolRule, Start, ToolSeen, TrialFinding

OK = "ok"
ATTENTION = "attention"
REFUSE = "refuse"
MANY_TOKENS = 20_000
MUCH_MEMORY_KB = 1024 * 1024
MANY_PROCESSES = 20
SLOW_MS = 10_000.0
NAMES = 53  # the port at which names are asked for
FIRST_CHOSEN = 32_768  # from here on kernels choose ports for those who name none
ERAS = {"modern": "2026-07-28", "legacy": "2025-11-25 and older"}


def collect_findings(
    starts: Sequence[Start],
    tools: Sequence[ToolSeen],
    unread: Sequence[str] = (),
    more: Sequence[TrialFinding] = (),
) -> list[TrialFinding]:
    """Everything that people should know, worst first. ``unread``: what its command names and its
    sandbox keeps from it; ``more``: what somebody else has found."""
    found = [
        *_find_start_problems(starts),
        *_find_figure_notes(starts, tools),
        *_find_state_notes(tools),
        *_find_session_notes(tools),
        *more,
    ]
    for path in unread:
        text = f"Its command refers to {path}, which its sandbox does not let it read. If the server needs this path, add it to “May read”."
        found.append(_make_finding("alarm", "unread", text))
    for tool in tools:
        found += _find_tool_notes(tool)
    order = ("danger", "alarm", "note")
    return sorted(found, key=lambda each: order.index(each["severity"]))


def decide_verdict(found: Iterable[TrialFinding]) -> str:
    """The word at the top of the report."""
    severities = {each["severity"] for each in found}
    if "danger" in severities:
        return REFUSE
    return ATTENTION if "alarm" in severities else OK


def propose_tool_rules(tools: Sequence[ToolSeen]) -> list[ProposedToolRule]:
    """The whitelist that follows: what claims to read runs, what changes something asks, what is
    suspicious stays hidden."""
    return [
        ProposedToolRule(tool=tool["name"], hash=tool["hash"], rule=rule, why=why)
        for tool in tools
        for rule, why in [_choose_rule(tool)]
    ]


def propose_sandbox_fields(
    starts: Sequence[Start],
    network_needed: bool | None,
    now: dict[str, Any],
    unread: Sequence[str] = (),
) -> dict[str, Any]:
    """Fields of the server that would confine it to what it has needed; only those that differ from
    ``now``.

    Where it did not start in its sandbox, only that it may read what its command names
    (``unread``). What the trial cannot know to be unused stays as it is: the paths that it was
    given, and the network unless it is known (``is_network_needed``). Of a network that it needs,
    the ports that it used.
    """
    if not any(start["ok"] and start["network"] for start in starts):
        return {"sandbox_read": [*now.get("sandbox_read", ()), *unread]} if unread else {}
    mode = {} if now.get("sandbox") == "strict" else {"sandbox": "enforce"}
    network: dict[str, Any] = {}
    if network_needed is False:
        network = {"sandbox_network": "none"}
    elif network_needed and now.get("sandbox_network") != "ports":
        network = _propose_port_fields(starts)
    return {name: value for name, value in (mode | network).items() if now.get(name) != value}


def propose_sharing_fields(tools: Sequence[ToolSeen], now: dict[str, Any]) -> dict[str, Any]:
    """Of a server that everybody shares and that seems to keep state: a connection for each
    session. Only where it connects at the first call, as such servers must.
    """
    return (
        {"shared_by": "session"}
        if can_be_shared_less(now)
        and (_list_acting_tools(tools) or _list_session_dependent_tools(tools))
        else {}
    )


def can_be_shared_less(now: Mapping[str, Any]) -> bool:
    """Whether everybody shares a server that could have a connection for each session."""
    return now.get("shared_by") == "everybody" and now.get("connect_mode") == "lazy"


def is_by_session(answers: Sequence[tuple[str, str]]) -> bool:
    """Whether two sessions get different answers to one call. ``answers``: of both, for each of at
    least two rounds.

    Either each session has an answer of its own, which stays the same, or both have the same
    sequence of different answers, as a server gives that counts for each session. A clock or a
    server that counts for everybody gives neither.
    """
    first, second = (list(each) for each in zip(*answers, strict=True))
    if len(set(first)) == len(set(second)) == 1:
        return first != second
    return first == second and len(set(first)) == len(first)


def _list_session_dependent_tools(tools: Sequence[ToolSeen]) -> list[str]:
    return [tool["name"] for tool in tools if tool.get("by_session")]


def _list_acting_tools(tools: Sequence[ToolSeen]) -> list[str]:
    return list_acting_names((tool["name"], tool["reads"]) for tool in tools)


def _propose_port_fields(starts: Sequence[Start]) -> dict[str, Any]:
    """The ports that it was seen to use; an open network where none was, or one that nobody can
    name beforehand."""
    connected = _collect_ports(starts, "connected")
    listened = _collect_ports(starts, "listened")
    if not connected | listened or any(port >= FIRST_CHOSEN for port in listened):
        return {"sandbox_network": "all"}
    connect = sorted(connected | {NAMES} if connected else connected)
    return {
        "sandbox_network": "ports",
        "sandbox_connect": connect,
        "sandbox_listen": sorted(listened),
    }


def _collect_ports(starts: Sequence[Start], word: str) -> set[int]:
    return {port for start in starts for port in start.get(word, ())}  # type: ignore[attr-defined]


def is_network_needed(
    starts: Sequence[Start], closed: Sequence[ToolSeen], opened: Sequence[ToolSeen]
) -> bool | None:
    """True: it started, or a tool answered, with the network open only. False: every tool answered
    without it, or claims to reach nothing outside. None: nobody can know."""
    working = {start["network"] for start in starts if start["ok"]}
    before = {tool["name"]: tool["call"].get("outcome") for tool in closed}
    if working == {"open"} or any(
        tool["call"].get("outcome") == "ok" != before.get(tool["name"]) for tool in opened
    ):
        return True
    enough = all(tool["closed_world"] or tool["call"].get("outcome") == "ok" for tool in closed)
    return False if "closed" in working and closed and enough else None


def _choose_rule(tool: ToolSeen) -> tuple[str, str]:
    if tool["severity"] >= Severity.ALARM or tool["schema"]:
        return "hide", "its definition has findings" if tool[
            "severity"
        ] >= Severity.ALARM else "its schema cannot be used"
    if not tool["reads"]:
        return "ask", "it does not declare that it only reads"
    if tool["destroys"]:
        return "ask", "it declares that it only reads and also that it is destructive"
    if tool["call"].get("outcome") == "failed":
        return "ask", "it declares that it only reads, but it did not answer"
    return "allow", "it declares that it only reads"


def _find_start_problems(starts: Sequence[Start]) -> Iterator[TrialFinding]:
    working = [start for start in starts if start["ok"]]
    if not working:
        first = starts[0] if starts else Start(error="No start was attempted.", code="")
        yield _make_finding("danger", "start", f"The server does not start: {first.get('error')}")
        return
    ways = {start["network"] for start in working}
    for era, name in ERAS.items():
        tried = [start for start in starts if start["era"] == era and start["network"] in ways]
        if tried and not any(start["ok"] for start in tried):
            yield _make_finding("note", "era", f"The server does not support MCP {name}.")
    for start in working:
        if start.get("error"):
            yield _make_finding(
                "alarm", "ended", f"The server exited during the trial: {start['error']}"
            )
    if len({start["tools"] for start in working}) > 1:
        yield _make_finding(
            "alarm", "eras differ", "The server does not offer the same tools at each start."
        )
    if not any(start["network"] != "open" for start in working):
        yield _make_finding("note", "network", "The server starts only if the network is open.")
    yield from _find_port_notes(starts)
    for path in sorted({path for start in starts for path in start.get("denied", ())}):
        yield _make_finding(
            "note", "denied", f"According to its log, the server was denied access to {path}."
        )
    if left := max(start.get("left_out", 0) for start in working):
        why = " ".join(
            dict.fromkeys(text for start in working for text in start.get("problems", ()))
        )
        yield _make_finding(
            "alarm",
            "left out",
            f"{number_of(left, 'definition of the server', 'definitions of the server')} cannot be used. {why}".strip(),
        )


def _find_port_notes(starts: Sequence[Start]) -> Iterator[TrialFinding]:
    """What was seen of its network, for a policy that names ports: it may use others when nobody
    looks."""
    for word, doing in (("connected", "connected to"), ("listened", "listening on")):
        if ports := sorted(_collect_ports(starts, word)):
            text = (
                f"During the trial, the server was {doing} TCP ports {', '.join(map(str, ports))}"
            )
            more = "If you limit its network to ports, allow these ports, and port 53 for host names. The server may use other ports at other times."
            yield _make_finding("note", "ports", f"{text}. {more}")


def _find_figure_notes(
    starts: Sequence[Start], tools: Sequence[ToolSeen]
) -> Iterator[TrialFinding]:
    tokens = sum(tool["tokens"] for tool in tools)
    if tokens > MANY_TOKENS:
        yield _make_finding(
            "alarm",
            "tokens",
            f"Its definitions take {tokens:,} tokens in every context that includes them.",
        )
    memory = find_largest_figure(starts, "memory_kb")
    processes = find_largest_figure(starts, "processes")
    if memory is not None and memory > MUCH_MEMORY_KB:
        yield _make_finding("alarm", "memory", f"The server used {memory // 1024:,} MB of memory.")
    if processes is not None and processes > MANY_PROCESSES:
        yield _make_finding("alarm", "processes", f"The server started {processes} processes.")
    slowest = find_largest_figure(starts, "connect_ms")
    if slowest is not None and slowest > SLOW_MS:
        yield _make_finding(
            "alarm", "slow", f"The server took {slowest / 1000:.1f} seconds to start."
        )


def _find_state_notes(tools: Sequence[ToolSeen]) -> Iterator[TrialFinding]:
    if names := _list_acting_tools(tools):
        said = f"The server seems to keep state between calls ({', '.join(names[:5])})."
        yield _make_finding(
            "note",
            "state",
            f"{said} If all agents share one connection, they see each other's state. Set “Shared by” to one agent or one host session.",
        )


def _find_session_notes(tools: Sequence[ToolSeen]) -> Iterator[TrialFinding]:
    if names := _list_session_dependent_tools(tools):
        yield _make_finding(
            "note",
            "state",
            f"Two sessions got different answers to the same call ({', '.join(names)}), so the server keeps state for each "
            "session. If all agents share one connection, they see each other's state. Set “Shared by” to one agent or one host session.",
        )


def _find_tool_notes(tool: ToolSeen) -> Iterator[TrialFinding]:
    name = tool["name"]
    severity = tool["severity"]
    if severity > Severity.CLEAN:
        if severity >= Severity.DANGER:
            word = "danger"
        elif severity == Severity.ALARM:
            word = "alarm"
        else:
            word = "note"
        yield _make_finding(word, "definition", " ".join(tool["found"]), name)
    if tool["schema"]:
        yield _make_finding("alarm", "schema", tool["schema"], name)
    if tool["reads"] and tool["destroys"]:
        yield _make_finding(
            "alarm",
            "claims",
            "The tool declares that it only reads and also that it is destructive.",
            name,
        )
    match tool["call"].get("outcome"):
        case "failed":
            yield _make_finding(
                "alarm", "call", f"The tool did not answer: {tool['call'].get('why')}", name
            )
        case "error":
            yield _make_finding(
                "note",
                "call",
                "The tool answered with an error. The arguments were generated from its schema.",
                name,
            )


def find_largest_figure(starts: Iterable[Start], name: str) -> Any:
    """The largest figure of this name in all starts; None where none was observed."""
    return max((value for start in starts if (value := start.get(name)) is not None), default=None)  # type: ignore[type-var]


def _make_finding(severity: str, kind: str, text: str, tool: str = "") -> TrialFinding:
    return TrialFinding(severity=severity, kind=kind, tool=tool, text=text)
