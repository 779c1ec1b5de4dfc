"""Small questions to the snapshot: whose token, which workspace."""

from __future__ import annotations

import pytest

from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import AgentSpec, TokenSpec, WorkspaceSpec


def workspaces(*directories: str) -> Snapshot:
    return Snapshot(
        1, workspaces=tuple(WorkspaceSpec(directory, directory, "ann") for directory in directories)
    )


@pytest.mark.parametrize(
    ("directories", "where", "found"),
    [
        (["/srv/app"], "/srv/app", "/srv/app"),
        (["/srv/app"], "/srv/app/src/deep", "/srv/app"),
        (["/srv/app"], "/srv/app2", None),
        (["/srv/app"], "/srv/app.old", None),
        (["/srv/app"], "/srv", None),
        (["/srv/app"], "/", None),
        (["/srv/app"], "", None),
        (["/srv/app"], "srv/app", None),
        (["/srv/app"], "/other/srv/app", None),
        (["/srv/app"], "/SRV/APP", None),
        (["/srv/app/"], "/srv/app", "/srv/app/"),
        (["/srv/app"], "/srv/app/", "/srv/app"),
        (["/srv", "/srv/app", "/srv/app/src"], "/srv/app/lib", "/srv/app"),
        (["/srv/app/src", "/srv/app", "/srv"], "/srv/app/src/x", "/srv/app/src"),
        (["/"], "/anywhere", "/"),
        (["/", "/srv"], "/srv", "/srv"),
        (["/a b", "/a"], "/a b/c", "/a b"),
        ([], "/srv", None),
    ],
)
def test_the_longest_directory_that_holds_it_wins(
    directories: list[str], where: str, found: str | None
):
    workspace = workspaces(*directories).find_workspace(where)
    assert (workspace.directory if workspace else None) == found


@pytest.mark.parametrize(
    ("token", "now", "known"),
    [
        ("good", 99.9, True),
        ("good", 100.0, False),
        ("good", 101, False),
        ("ever", 1e12, True),
        ("orphan", 1, False),
        ("", 1, False),
        ("GOOD", 1, False),
    ],
)
def test_a_token_belongs_to_a_live_agent_until_its_end(token: str, now: float, known: bool):
    ann = AgentSpec(1, "ann", frozenset(), None, ())
    tokens = {
        "good": TokenSpec("ann", 100.0),
        "ever": TokenSpec("ann", None),
        "orphan": TokenSpec("gone", None),
    }
    assert (
        Snapshot(1, agents={"ann": ann}, tokens=tokens).find_agent_by_token(token, now) is ann
    ) is known
