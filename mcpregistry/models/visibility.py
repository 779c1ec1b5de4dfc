"""The one place that says who may see which records: every face reads them through
``visible_to``."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from django.contrib.auth.models import AnonymousUser, User
from django.db import models

from mcpregistry.models.access import Agent

M_co = TypeVar("M_co", bound=models.Model, covariant=True)


class VisibleQuerySet(models.QuerySet[M_co]):
    """Rows of a kind that people see by their permissions, and agents as far as the rows are their
    own."""

    # the column, or the way to it, with the slug of the agent whose row it is; empty: no agent sees
    # any
    own_by = ""
    # permissions of which one is enough; empty: the model's own "view"
    seen_with: tuple[str, ...] = ()

    def visible_to(self, who: User | AnonymousUser | Agent) -> Self:
        """The rows that this person or agent may see: for a person all of them or none."""
        if isinstance(who, Agent):
            own: dict[str, Any] = {self.own_by: who.slug}
            return self.filter(**own) if self.own_by else self.none()
        names = self.seen_with or (f"view_{self.model._meta.model_name}",)
        may = any(who.has_perm(f"{self.model._meta.app_label}.{name}") for name in names)
        return self.all() if may else self.none()
