"""What a trial of a server has found: the values that its report consists of, as they are
stored."""

from __future__ import annotations

from typing import Any, TypedDict


class Start(TypedDict, total=False):
    """One start of the server in one era. Times in milliseconds, memory in kilobytes; None: could
    not be observed."""

    era: str
    network: str  # of a local server: closed or open; empty for others
    ok: bool
    code: str
    error: str
    protocol: str
    server: dict[str, str]  # what it calls itself: name and version
    connect_ms: float
    list_ms: float
    tools: int
    prompts: int | None
    resources: int | None
    left_out: int
    problems: list[str]  # why, of a few of those that were left out
    memory_kb: int | None
    processes: int | None
    written: list[str] | None  # files below its own folder, by their path there
    elsewhere: list[str] | None  # paths that it was given, in which it held files open
    connected: list[int]  # TCP ports of others that it was seen connected to
    listened: list[int]  # TCP ports that it was seen to listen on
    denied: list[str]  # paths that its log says it was refused


class Called(TypedDict, total=False):
    """One call of a tool. ``outcome``: ok, error (the tool says so), failed (no answer), skipped
    (see ``why``)."""

    outcome: str
    ms: float
    bytes: int
    why: str


class ToolSeen(TypedDict, total=False):
    """One tool as the server defined it. ``severity`` and ``found`` are the scanner's; ``schema``
    says why it is none."""

    name: str
    hash: str
    reads: bool
    destroys: bool
    closed_world: bool  # it claims to reach nothing outside its own
    tokens: int
    severity: int
    found: list[str]
    schema: str
    call: Called
    by_session: bool  # two sessions got different answers to the same call


class TrialFinding(TypedDict):
    """``severity``: danger, alarm or note. ``text`` is for people; ``tool`` is empty where it is
    about the server."""

    severity: str
    kind: str
    tool: str
    text: str


class ProposedToolRule(TypedDict):
    """What is proposed of one tool, defined so. ``rule``: allow, ask or hide."""

    tool: str
    hash: str
    rule: str
    why: str


class TrialReportData(TypedDict, total=False):
    """The whole. ``proposal`` holds ``tools`` (rows) and ``fields`` of the server (its sandbox)."""

    verdict: str
    starts: list[Start]
    tools: list[ToolSeen]
    findings: list[TrialFinding]
    figures: dict[str, Any]
    unobserved: list[str]
    proposal: dict[str, Any]
