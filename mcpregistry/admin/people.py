"""People and their roles, in the look of the other pages."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin
from unfold.decorators import display
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.services.access import second_factor

admin.site.unregister(User)
admin.site.unregister(Group)

_HELP = {
    "is_staff": "May log in to this site. Roles come from groups: viewer, operator, approver, admin.",
    "groups": "Each role holds what the one before it may do: viewer, operator, approver, admin.",
    "is_superuser": "May do everything, whatever the roles say. Better make people admin.",
}


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):  # type: ignore[type-arg]  # not to be subscripted at run time
    """Django's own page for people, with their roles in the list."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "email", "roles", "is_active", "is_staff", "second_factor_state", "last_login")
    actions = ("reset_second_factor",)

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).prefetch_related("groups").select_related("second_factor")

    def get_form(self, request: Any, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        for name, text in _HELP.items():
            if name in form.base_fields:
                form.base_fields[name].help_text = text
        return form

    @admin.display(description="roles")
    def roles(self, user: User) -> str:
        return ", ".join(group.name for group in user.groups.all()) or ("superuser" if user.is_superuser else "none")

    @display(description="second factor", label={"on": "success", "off": "info"})
    def second_factor_state(self, user: User) -> str:
        factor = getattr(user, "second_factor", None)
        return "on" if factor is not None and factor.confirmed_at else "off"

    @admin.action(description="Reset the second factor", permissions=["change"])
    def reset_second_factor(self, request: HttpRequest, chosen: QuerySet[User]) -> None:
        """Of people who have lost it; they log in with their password until they have set up another."""
        for user in chosen:
            try:
                gone = second_factor.reset(user, by=cast(User, request.user))
            except SlipsnisseError as error:
                self.message_user(request, f"{user}: {error.message} {error.remedy}", messages.ERROR)
            else:
                said = "has no second factor any more" if gone else "had none"
                self.message_user(request, f"{user} {said}.", messages.SUCCESS if gone else messages.INFO)


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ModelAdmin):
    """The four roles get their permissions anew at every migrate; other groups are yours."""
