"""A page about one record beside its form: who opens it needs the record and its permissions, then
the page shows itself."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse

from mcpregistry.admin.base import RecordAdmin

Record = TypeVar("Record", bound=Model)


class RecordPage(Generic[Record]):
    """A view of ``RecordAdmin``, which gives it records and addresses. ``permissions``: all of them
    are needed."""

    permissions: ClassVar[tuple[str, ...]]

    def __init__(self, admin: RecordAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The page of the record with this key; the list, with a word, where there is none."""
        record: Any = self.admin.get_object(request, object_id)
        if record is None:
            return self.admin._get_obj_does_not_exist_redirect(request, self.admin.opts, object_id)
        if not request.user.has_perms(self.permissions):
            raise PermissionDenied
        return self.page(request, record)

    def page(self, request: HttpRequest, record: Record) -> HttpResponse:
        """Show the page, or do what a POST asks for."""
        raise NotImplementedError
