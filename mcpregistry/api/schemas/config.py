"""Configuration files in and out."""

from __future__ import annotations

from typing import Any, Literal

from ninja import Schema
from pydantic import Field


class NoteOut(Schema):
    """What became of one key of the file; never quotes a value."""

    action: Literal["kept", "translated", "parked", "left out", "refused"]
    pointer: str = Field(description="JSON pointer (RFC 6901) into the file.")
    message: str
    remedy: str


class ChangeOut(Schema):
    """What the import does to one server."""

    server: str
    action: Literal["created", "changed", "unchanged", "skipped"]


class ProjectOut(Schema):
    """A folder with servers of its own, and the workspace that it is or can become. Choose it with `projects`."""

    directory: str
    endpoint: str = Field(description="The endpoint that lists the servers of the project.")
    agent: str = Field(description="The agent that hosts act as in the folder.")
    servers: list[str]
    exists: bool = Field(description="The folder was a workspace before.")


class ImportOut(Schema):
    """``saved`` is false for a dry run. Imported servers are drafts."""

    saved: bool
    format: str
    changes: list[ChangeOut]
    notes: list[NoteOut]
    diff: str
    projects: list[ProjectOut]


class ExportOut(Schema):
    """``data`` is the file's content as a JSON value; no secret value is in it."""

    format: str
    data: dict[str, Any]
    notes: list[NoteOut]
