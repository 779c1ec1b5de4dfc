"""Configuration files in and out."""

from __future__ import annotations

from typing import Any, Literal

from ninja import Schema
from pydantic import Field


class NoteOut(Schema):
    """What happened to one key of the file. It never contains a value."""

    action: Literal["kept", "translated", "parked", "left out", "refused"]
    pointer: str = Field(description="JSON pointer (RFC 6901) to the place in the file.")
    message: str
    remedy: str


class ChangeOut(Schema):
    """What the import changes about one server."""

    server: str
    action: Literal["created", "changed", "unchanged", "skipped"]


class ProjectOut(Schema):
    """A directory with servers of its own, and its existing or possible workspace. Select it with
    `projects`."""

    directory: str
    endpoint: str = Field(description="The endpoint that lists the servers of the project.")
    agent: str = Field(description="The agent that hosts in the directory use.")
    servers: list[str]
    exists: bool = Field(description="Whether the directory was a workspace before.")


class ImportOut(Schema):
    """The result of an import. ``saved`` is false for a dry run. Imported servers are drafts."""

    saved: bool
    format: str
    changes: list[ChangeOut]
    notes: list[NoteOut]
    diff: str
    projects: list[ProjectOut]


class ExportOut(Schema):
    """``data`` is the content of the file as a JSON value. It contains no secret values."""

    format: str
    data: dict[str, Any]
    notes: list[NoteOut]
