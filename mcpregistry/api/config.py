"""Configuration files of other programs, in and out.

Import makes drafts and starts nothing. Placeholders stay as they are: the environment of this
process is never read for a file that came over the network. Export holds no secret values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Annotated, Any, Literal

from django.conf import settings
from django.http import HttpRequest
from ninja import Query
from pydantic import AfterValidator, Field

from mcpregistry.api.auth import actor, person, rights
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Text, cap_text
from mcpregistry.api.schemas.config import ChangeOut, ExportOut, ImportOut, NoteOut, ProjectOut
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid, Denied
from mcpregistry.domain.formats import FORMATS, READABLE, slipsnisse
from mcpregistry.domain.formats.notes import Note
from mcpregistry.domain.formats.verdicts import load_schema
from mcpregistry.services.access.credentials import MAY_KEEP
from mcpregistry.services.exchange import large_files
from mcpregistry.services.exchange.exporting import export_config
from mcpregistry.services.exchange.importing import import_file
from mcpregistry.services.exchange.policy import MAY_RULE
from mcpregistry.services.exchange.workspaces import MAY_MAKE, WorkspaceChoice

router = PermissionRouter(tags=["configuration files"])


def _check_format(name: str) -> str:
    if name not in FORMATS:
        raise ValueError(f"must be one of {', '.join(FORMATS)}")
    return name


FormatName = Annotated[
    str, AfterValidator(_check_format), Field(json_schema_extra={"enum": list(FORMATS)})
]


def _readable(name: str) -> str:
    if name not in READABLE:
        raise ValueError(f"must be one of {', '.join(READABLE)}")
    return name


ImportName = Annotated[
    str, AfterValidator(_readable), Field(json_schema_extra={"enum": list(READABLE)})
]

Projects = Annotated[
    list[Text],
    Query(
        max_length=200, description="Folders of the file's projects to add as workspaces, or `all`."
    ),
]
WorkspaceAgent = Annotated[
    Text | None,
    Query(max_length=63, description="The agent of hosts in these workspaces. Default: `local`."),
]

_FILE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "text/plain": {
                "schema": {"type": "string", "description": "The file: JSON, YAML or TOML."}
            }
        },
    }
}


@router.get("/config/export", response=ExportOut)
def export_configuration(
    request: HttpRequest, format: FormatName, only_enabled: bool = False
) -> ExportOut:
    """The servers as a configuration file in the given format, without secret values."""
    written = export_config(format_name=format, actor=actor(request), only_enabled=only_enabled)
    _refuse(written.refused, "Nothing was exported")
    return ExportOut(format=format, data=written.data, notes=_notes(written.notes))


@router.get("/config/schema", response=dict[str, Any])
def configuration_schema(
    request: HttpRequest,
    *,
    variant: Annotated[
        slipsnisse.Variant, Query(description="Schema of the plain or of the extended format.")
    ] = "slipsnisse",
) -> dict[str, Any]:
    """The JSON Schema of the site's own file format. Use it to validate files before you import
    them."""
    return load_schema(variant)


def _read_large(view: Callable[..., Any]) -> Callable[..., Any]:
    """Read the whole body first, where it is larger than the bodies of other requests may be."""

    @wraps(view)
    def reading(request: HttpRequest, **given: Any) -> Any:
        if int(request.META.get("CONTENT_LENGTH") or 0) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            # what request.body returns from then on
            request._body = request.read(large_files.MAX_BYTES + 1)
        return view(request, **given)

    return reading


@router.post("/config/import", response=ImportOut, openapi_extra=_FILE)
@_read_large
@once()
def import_configuration(
    request: HttpRequest,
    *,
    format: Annotated[
        ImportName | None,
        Query(description="Format of the file. Default: detected from its content."),
    ] = None,
    file: Annotated[
        Text | None,
        Query(
            max_length=200, description="Name of the file. Its ending distinguishes JSON from YAML."
        ),
    ] = None,
    on_conflict: Literal["error", "skip", "replace", "rename"] = "error",
    credentials: Annotated[
        bool,
        Query(description="Store values that look like secrets as credentials of their server."),
    ] = False,
    projects: Projects = [],  # noqa: B006 - pydantic copies it
    agent: WorkspaceAgent = None,
    dry_run: bool = False,
) -> ImportOut:
    """Import a configuration file of up to 50 MiB. The body is the file. A file larger than 1 MiB
    must be JSON.

    An entry that cannot be used is left out. If the whole file is refused, nothing is saved. A dry
    run returns all notes.
    """
    _check_rights(request, credentials=credentials, projects=projects)
    outcome = import_file(
        raw=request.body,
        path=file or "import",
        actor=actor(request),
        format_name=format or "",
        on_conflict=on_conflict,
        save=not dry_run,
        secrets_apart=credentials,
        workspaces=WorkspaceChoice(frozenset(projects), agent or "local"),
        rights=rights(request),
        may_rule=all(_may(request, right) for right in MAY_RULE),
        may_grant=_may(request, "mcpregistry.add_grant")
        and _may(request, "subagents.add_experttool"),
    )
    if not dry_run:
        _refuse(outcome.refused, "Nothing was imported")
    return ImportOut(
        saved=outcome.saved,
        format=outcome.format,
        changes=[
            ChangeOut(server=change.label, action=change.action) for change in outcome.changes
        ],
        notes=_notes(outcome.notes),
        diff=cap_text(outcome.format_diff(), 200_000),
        projects=[
            ProjectOut(
                directory=each.directory,
                endpoint=each.endpoint,
                agent=each.agent,
                servers=[*each.servers],
                exists=each.exists,
            )
            for each in outcome.projects
        ],
    )


def _check_rights(request: HttpRequest, *, credentials: bool, projects: list[str]) -> None:
    if credentials and not all(_may(request, right) for right in MAY_KEEP):
        raise Denied(
            error_texts.say_not_permitted(
                "add", "credentials and to choose the servers that receive them"
            ),
            remedy=f"{error_texts.advise_role('admin')} Or leave out the parameter 'credentials'.",
        )
    if projects and not all(_may(request, right) for right in MAY_MAKE):
        raise Denied(
            error_texts.say_not_permitted("add", "workspaces for projects"),
            remedy=f"{error_texts.advise_role('admin')} Or leave out the parameter 'projects'.",
        )


def _may(request: HttpRequest, permission: str) -> bool:
    user = person(request)
    return user is not None and user.has_perm(permission)


def _refuse(notes: tuple[Note, ...], what: str) -> None:
    if notes:
        reasons = " ".join(
            f"{note.pointer or '/'}: {note.sentence} {note.remedy}".strip() for note in notes[:20]
        )
        raise ConfigInvalid(
            f"{what}. {cap_text(reasons, 4000)}", remedy="Correct the file and send it again."
        )


def _notes(notes: Iterable[Note]) -> list[NoteOut]:
    return [
        NoteOut(action=n.action, pointer=n.pointer, message=n.sentence, remedy=n.remedy)
        for n in notes
    ]
