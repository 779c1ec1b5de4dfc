"""The router that every file of this room uses: it hangs the permission table on each operation.

Paths are written out in full (``/servers/{slug}``), so that they can be found by searching and are
the very keys of the table.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.datastructures import MultiValueDict
from ninja import Router, Schema
from ninja.operation import PathView
from ninja.parser import Parser
from ninja.renderers import JSONRenderer

from mcpregistry.api.auth import gates
from mcpregistry.api.errors import BadRequest, MethodNotAllowed, refusal
from mcpregistry.api.permissions import TABLE, OperationRule
from mcpregistry.api.schemas.basics import Problem
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.domain.text.unique_keys import RepeatedKeyError, build_unique_object

View = Callable[..., Any]

# What any operation may answer besides its own; 400 and 422 come from reading the request.
_ALWAYS = (400, 401, 403, 413, 422, 429, 500, 503)


class _Refusal(Schema):
    """What ninja makes of ``Problem`` for each status of each operation, once: a thousand classes
    take half a second."""

    response: Problem


class OurPathView(PathView):
    """Answers a method that an address does not take in the shape of every other refusal."""

    def clone(self) -> OurPathView:
        """As in the base class, which would come back as its own class."""
        ours = OurPathView()
        ours.__dict__.update(super().clone().__dict__)
        return ours

    def _not_allowed(self) -> HttpResponse:
        methods = ", ".join(
            sorted({method for operation in self.operations for method in operation.methods})
        )
        return refusal(
            MethodNotAllowed(
                f"This address supports only {methods}.",
                remedy="Use one of these methods.",
                allow=methods,
            )
        )


class PermissionRouter(Router):
    """A ninja router that refuses an operation without a row in the permission table, at
    start-up."""

    def add_api_operation(
        self, path: str, methods: list[str], view_func: Callable[..., Any], **options: Any
    ) -> None:
        """Add the gates of the operation's row, then register it as usual."""
        self.path_operations.setdefault(path, OurPathView())
        is_async = inspect.iscoroutinefunction(view_func)
        options["auth"] = gates(_rule(path, methods), is_async=is_async)
        options["operation_id"] = view_func.__name__
        known: set[str] = set()  # filled by what ninja reads from the signature
        checked = _refuse_unknown_parameters(view_func, known)
        super().add_api_operation(path, methods, checked, **options)
        operation = self.path_operations[path].operations[-1]
        refusals = dict.fromkeys((*_ALWAYS, *_missing(path), *_conflict(methods)), _Refusal)
        operation.response_models = refusals | operation.response_models
        queries = [model for model in operation.models if model.__ninja_param_source__ == "query"]
        known.update(name for model in queries for name in model.__ninja_flatten_map__)


def _refuse_unknown_parameters(view: View, known: set[str]) -> View:
    """Return the view, which now refuses a query parameter that is not ``known``. Without this, a
    misspelt filter lists everything. Authentication comes before."""

    def check(request: HttpRequest) -> None:
        for name in request.GET:
            if name not in known:
                raise _make_unknown_parameter_error(name, known)

    if inspect.iscoroutinefunction(view):

        @wraps(view)
        async def check_and_serve(request: HttpRequest, **given: Any) -> Any:
            check(request)
            return await view(request, **given)
    else:

        @wraps(view)
        def check_and_serve(request: HttpRequest, **given: Any) -> Any:
            check(request)
            return view(request, **given)

    # ninja resolves annotations in the module of the function that it is given
    check_and_serve.__signature__ = inspect.signature(view, eval_str=True)  # type: ignore[attr-defined]
    return check_and_serve


def _make_unknown_parameter_error(name: str, known: set[str]) -> BadRequest:
    remedy = "Remove it: this operation has no query parameters."
    if known:
        remedy = f"Remove it, or use one of these parameters: {', '.join(sorted(known))}."
    return BadRequest(
        f"This operation has no query parameter '{show_invisible_characters(name, 100)}'.",
        remedy=remedy,
    )


def _rule(path: str, methods: list[str]) -> OperationRule:
    key = f"{' '.join(methods)} {path}"
    if key not in TABLE:
        raise ImproperlyConfigured(
            f"{key} is not in the permission table (mcpregistry/api/permissions.py)."
        )
    return TABLE[key]


def _missing(path: str) -> tuple[int, ...]:
    return (404,) if "{" in path else ()


def _conflict(methods: list[str]) -> tuple[int, ...]:
    return (409,) if {"POST", "PUT", "PATCH"} & {*methods} else ()


class StrictParser(Parser):
    """JSON as RFC 8259 has it: NaN and infinities are no numbers, and have no place in a database.

    A key that stands twice in an object, or a parameter that is given twice, is refused: a filter
    or log in front of the site might read the other value.
    """

    def parse_body(self, request: HttpRequest) -> Any:
        """The body as JSON; raises ``BadRequest``."""
        try:
            return json.loads(
                request.body, parse_constant=_no_number, object_pairs_hook=build_unique_object
            )
        except RepeatedKeyError as error:
            raise BadRequest(str(error), remedy=error.remedy) from None

    def parse_querydict(
        self, data: MultiValueDict[str, Any], list_fields: list[str], request: HttpRequest
    ) -> dict[str, Any]:
        """The parameters of a query; raises ``BadRequest`` if one that is not a list is given more
        than once."""
        for name, values in data.lists():
            if name not in list_fields and len(values) > 1:
                raise BadRequest(
                    f"The parameter '{show_invisible_characters(name, 100)}' was sent {len(values)} times.",
                    remedy="Send each parameter only once.",
                )
        return super().parse_querydict(data, list_fields, request)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a valid JSON number")


class StrictRenderer(JSONRenderer):
    """JSON answers in which what JSON does not have is an error, not NaN."""

    json_dumps_params = {"allow_nan": False}
