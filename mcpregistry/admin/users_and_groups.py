"""People with their one role, invitations by link, and groups, in the look of the other pages."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import SetPasswordMixin
from django.contrib.auth.models import Group, User
from django.contrib.auth.views import PasswordChangeView
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.admin import ModelAdmin
from unfold.decorators import display
from unfold.forms import (
    AdminOwnPasswordChangeForm,
    AdminPasswordChangeForm,
    UserChangeForm,
    UserCreationForm,
)
from unfold.widgets import UnfoldAdminSelectWidget

from mcpregistry.admin.concurrent_edits import ConcurrentAdmin, ConcurrentForm
from mcpregistry.admin.deletion_preview import Deleted, without_relations
from mcpregistry.admin.versions import VersionsAdmin, history_page
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.models.invitation import ROLE_CHOICES
from mcpregistry.queries.account_history import list_account_history
from mcpregistry.services.access import roles, second_factor

admin.site.unregister(User)
admin.site.unregister(Group)

_HELP = {
    "groups": _("Groups that the user has in addition to the role."),
    "is_superuser": _(
        "A superuser can do everything, whatever their role. If possible, use the role admin instead."
    ),
    "is_active": _("If disabled, the user cannot log in, and their tokens are refused."),
}
_NO_VERSIONS = _(
    "This list comes from the audit log. Accounts do not have versions that you can restore. To "
    "assign or remove a role, edit the user. Passwords and deleted accounts cannot be restored."
)
_NO_ROLE = ("", _("none: cannot log in"))
_SUPERUSER = ("", _("none: a superuser needs no role"))


def _role_field() -> forms.ChoiceField:
    return forms.ChoiceField(
        choices=[_NO_ROLE, *ROLE_CHOICES],
        required=False,
        help_text=_("What the user can do. Every role includes logging in to this site."),
        widget=UnfoldAdminSelectWidget,
    )


class PersonForm(ConcurrentForm, UserChangeForm):
    """A person with one role: it is a group, and the groups that are none stand apart."""

    role = _role_field()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["role"] = roles.find_highest_role(self.instance)
        if self.instance.is_superuser and "role" in self.fields:
            cast(forms.ChoiceField, self.fields["role"]).choices = [_SUPERUSER, *ROLE_CHOICES]
        if "groups" in self.fields:
            own = Group.objects.exclude(name__in=roles.ROLES)
            self.fields["groups"].queryset = own
            self.initial["groups"] = [
                group for group in self.initial.get("groups", ()) if group.name not in roles.ROLES
            ]

    def clean(self) -> dict[str, Any]:
        """The role is put among the groups, so that they are saved as one; staff follows."""
        cleaned = super().clean() or self.cleaned_data
        groups = [*cleaned.get("groups", ()), *Group.objects.filter(name=cleaned.get("role") or "")]
        cleaned["groups"] = groups
        self.instance.is_staff = bool(
            groups or cleaned.get("is_superuser") or cleaned.get("user_permissions")
        )
        return cast(dict[str, Any], cleaned)


class NewPersonForm(UserCreationForm):
    """Name, password and role, which is viewer at first. Nobody logs in without a password."""

    usable_password = None
    role = _role_field()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial.setdefault("role", roles.VIEWER)


_SetPassword: Any = SetPasswordMixin


class _PasswordOnly(_SetPassword):
    """Saves only the password. The account can be disabled while the password is hashed, and must
    stay disabled.

    In one transaction with what follows from it: the audit entry, and the end of the person's
    tokens.
    """

    def set_password_and_save(
        self, user: Any, *args: Any, commit: bool = True, **kwargs: Any
    ) -> Any:
        user = super().set_password_and_save(user, *args, commit=False, **kwargs)
        if commit:
            with transaction.atomic():
                user.save(update_fields=["password"])
        return user


class PasswordForm(_PasswordOnly, AdminPasswordChangeForm):
    """The password of another person."""


class OwnPasswordForm(_PasswordOnly, AdminOwnPasswordChangeForm):
    """The password of the person who is logged in."""


def change_own_password(
    request: HttpRequest, extra_context: dict[str, Any] | None = None
) -> HttpResponse:
    """Unfold's page for one's own password, with our form."""
    request.current_app = admin.site.name
    view = PasswordChangeView.as_view(
        form_class=OwnPasswordForm,
        success_url=reverse("admin:password_change_done"),
        extra_context={**admin.site.each_context(request), **(extra_context or {})},
    )
    return cast(HttpResponse, view(request))


# Unfold has no setting for the form
admin.site.password_change = change_own_password  # type: ignore[method-assign, assignment]


@admin.register(User)
# not to be subscripted at run time
class UserAdmin(ConcurrentAdmin, DjangoUserAdmin, ModelAdmin):  # type: ignore[type-arg]
    """Django's own page for people, with one field for what they may do."""

    form = PersonForm
    add_form = NewPersonForm
    change_password_form = PasswordForm
    list_display = ("username", "email", "role", "is_active", "second_factor_state", "last_login")
    list_filter = ("is_active", "groups")
    actions = ("reset_second_factor",)
    readonly_fields = ("last_login", "date_joined")
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        (_("Role"), {"fields": ("role", "is_active")}),
        (
            _("Personal data"),
            {"fields": (("first_name", "last_name"), "email", ("last_login", "date_joined"))},
        ),
        (
            _("Additional permissions"),
            {"classes": ("collapse",), "fields": ("groups", "is_superuser", "user_permissions")},
        ),
    )
    add_fieldsets = ((None, {"fields": ("username", "role", "password1", "password2")}),)

    def get_queryset(self, request: Any) -> Any:
        return (
            super().get_queryset(request).prefetch_related("groups").select_related("second_factor")
        )

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Deleted:
        """Without the rows of memberships and permissions, which have no names."""
        return without_relations(super().get_deleted_objects(objs, request))

    def get_form(self, request: Any, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        for name, text in _HELP.items():
            if name in form.base_fields:
                form.base_fields[name].help_text = text
        return form

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        if not change:
            obj.is_staff = bool(form.cleaned_data.get("role"))
        super().save_model(request, obj, form, change)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        if not change:
            roles.assign_role(user=form.instance, role=form.cleaned_data.get("role", ""))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """What the audit log tells of the account: accounts have no versions, and nothing of them
        is put back."""
        user = cast(User | None, self.get_object(request, object_id))
        if user is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        if not (
            self.has_view_permission(request, user)
            and request.user.has_perm("mcpregistry.view_auditentry")
        ):
            raise PermissionDenied
        return history_page(self, request, user, list_account_history(user), {"note": _NO_VERSIONS})

    @admin.display(description=_("role"))
    def role(self, user: User) -> str:
        found = roles.find_highest_role(user)
        return "superuser" if user.is_superuser else found or "none"

    @display(description=_("second factor"), label={"enabled": "success", "disabled": "info"})
    def second_factor_state(self, user: User) -> str:
        factor = getattr(user, "second_factor", None)
        return "enabled" if factor is not None and factor.confirmed_at else "disabled"

    @admin.action(
        description=_("Reset the second factor of the selected users"), permissions=["change"]
    )
    def reset_second_factor(self, request: HttpRequest, chosen: QuerySet[User]) -> None:
        """Of people who have lost it; they log in with their password until they have set up
        another."""
        for user in chosen:
            try:
                gone = second_factor.reset_factor(user, by=cast(User, request.user))
            except SlipsnisseError as error:
                self.message_user(
                    request, f"{user}: {error.message} {error.remedy}", messages.ERROR
                )
            else:
                said = (
                    gettext("{user} no longer has a second factor.")
                    if gone
                    else gettext("{user} had no second factor.")
                )
                self.message_user(
                    request, said.format(user=user), messages.SUCCESS if gone else messages.INFO
                )


@admin.register(Group)
class GroupAdmin(ConcurrentAdmin, DjangoGroupAdmin, VersionsAdmin):
    """The four roles get their permissions anew at every migrate; other groups are yours, and have
    versions."""

    form = ConcurrentForm

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Deleted:
        """Without the rows of memberships and permissions, which have no names."""
        return without_relations(super().get_deleted_objects(objs, request))

    def may_put_back(self, request: HttpRequest, row: Any) -> bool:
        return super().may_put_back(request, row) and row.name not in roles.ROLES
