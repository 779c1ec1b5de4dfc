"""Who shares a connection to a server that is not everybody's: which calls have the same one."""

from __future__ import annotations

EVERYBODY = ""  # the connection that all use, and that checks and tests of a server use in any case
STDIO = "stdio"  # the session of a host that has this process for itself
# The second connection, with the older handshake, to a server that supports both protocol versions.
OLDER = "older:"
_RUN = "run:"


def name_run_session(run: str) -> str:
    """What a run of an expert tool calls its own session."""
    return f"{_RUN}{run}"


def make_session_key(shared_by: str, agent: str, session: str) -> str:
    """The key of the connection that this call may use. Calls of two agents never have the same
    one.

    ``session`` is what the host's session is called, empty for a caller that has none.
    """
    if shared_by == "everybody":
        return EVERYBODY
    if shared_by == "agent" and not session.startswith(_RUN):
        return agent
    return make_host_session_key(agent, session)


def make_host_session_key(agent: str, session: str) -> str:
    """The key of the connections of this session of a host."""
    return f"{agent}/{session}"


def is_of_one_host(key: str) -> bool:
    """Whether this key of ``make_host_session_key`` belongs to a single host. Hosts over HTTP that
    name no session have the same key as other hosts of their agent."""
    session = parse_session_name(key)
    return session != "" and "::" not in session


def parse_session_name(key: str) -> str:
    """What the session of this key is called; empty where it is all of the agent's."""
    return key.partition("/")[2]


def name_mcp_session(session_id: str) -> str:
    """What an older host's session over HTTP is called."""
    return f"http:{session_id}"


def parse_session_id(name: str) -> str:
    """The id of the older host's session that is called so; empty for any other."""
    prefix = name_mcp_session("")
    return name.removeprefix(prefix) if name.startswith(prefix) else ""


def name_implicit_session(endpoint: str, named: str = "", conversation: str = "") -> str:
    """What the session of a caller is called that has none by its protocol: by the name that it
    gives, else by its conversation, else all of its requests to the endpoint are one."""
    return f"{endpoint}:{named}" if named else f"{endpoint}::{conversation}"
