"""People and their roles, in the look of the other pages."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

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
    list_display = ("username", "email", "roles", "is_active", "is_staff", "last_login")

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).prefetch_related("groups")

    def get_form(self, request: Any, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        for name, text in _HELP.items():
            if name in form.base_fields:
                form.base_fields[name].help_text = text
        return form

    @admin.display(description="roles")
    def roles(self, user: User) -> str:
        return ", ".join(group.name for group in user.groups.all()) or ("superuser" if user.is_superuser else "none")


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ModelAdmin):
    """The four roles get their permissions anew at every migrate; other groups are yours."""
