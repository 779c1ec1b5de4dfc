"""The API's first version, put together. Its permissions are one table: ``permissions.py``."""

from __future__ import annotations

from typing import Any

from ninja import NinjaAPI, Swagger
from ninja.openapi.schema import OpenAPISchema

from mcpregistry.api import (
    access,
    agents,
    approvals,
    audit,
    budgets,
    calls,
    config,
    context_bill,
    conversations,
    definitions,
    endpoints,
    energy,
    grants,
    host_sessions,
    installs,
    invocations,
    notifications,
    registry,
    rules,
    servers,
    status,
    tools,
    usage,
    why,
)
from mcpregistry.api.auth import Nobody
from mcpregistry.api.errors import add_handlers
from mcpregistry.api.permission_router import StrictParser, StrictRenderer

_ROOMS = (
    servers,
    status,
    tools,
    calls,
    definitions,
    endpoints,
    energy,
    budgets,
    agents,
    grants,
    host_sessions,
    installs,
    registry,
    invocations,
    conversations,
    approvals,
    audit,
    config,
    notifications,
    rules,
    usage,
    why,
    access,
    context_bill,
)


class Api(NinjaAPI):
    """The OpenAPI document takes a second to make and never changes, so each process makes it
    once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._documents: dict[str, OpenAPISchema] = {}

    def get_openapi_schema(
        self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None
    ) -> OpenAPISchema:
        """Return the document for operations below ``path_prefix``; callers must not change it."""
        prefix = self.get_root_path(path_params or {}) if path_prefix is None else path_prefix
        if prefix not in self._documents:
            self._documents[prefix] = super().get_openapi_schema(path_prefix=prefix)
        return self._documents[prefix]


api = Api(
    title="Slipsnisse",
    version="1",
    description=(
        "Errors always have the form `{code, message, remedy}`. Lists are paged: send the value of `next` as `cursor`. "
        "Users authenticate with their session and its CSRF token, programs with a bearer token. "
        "Operations that create or start something accept an `Idempotency-Key`: for 24 hours, a repeated request with the "
        "same key has no further effect and gets the first answer. The same key with another request is refused (409)."
    ),
    urls_namespace="api",
    # drawing all operations takes seconds
    docs=Swagger(settings={"docExpansion": "none", "filter": True}),
    auth=Nobody(),
    parser=StrictParser(),
    renderer=StrictRenderer(),
)
add_handlers(api)
for room in _ROOMS:
    api.add_router("", room.router)
