"""What happens to people's accounts, roles and permissions, told to the audit log wherever it was
done.

A new password revokes the person's tokens.

By signals, since Django's own pages, commands and shells write these records: whoever asked is
known from the request, and is "system" where there is none. No password and no hash of one is ever
said.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.contrib.auth.signals import user_logged_in, user_logged_out
from django.db.models import Model
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_save
from django.http import HttpRequest
from simple_history.models import HistoricalRecords

from mcpregistry.domain.addresses import mask_client_address
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Server
from mcpregistry.services.access import tokens
from mcpregistry.services.records import audit

_FACTS = ("username", "email", "is_active", "is_staff", "is_superuser")
_BEFORE = "_slipsnisse_before"
_ADDED = {"post_add"}
_REMOVED = {"post_remove", "pre_clear"}


def listen() -> None:
    """Begin to note; called once, when the app is ready."""
    pre_save.connect(_remember, sender=User)
    post_save.connect(_note_saved_user, sender=User)
    post_delete.connect(_note_deletion, sender=User)
    post_delete.connect(_note_deletion, sender=Group)
    post_save.connect(_note_saved_group, sender=Group)
    for through in (User.groups.through, User.user_permissions.through, Group.permissions.through):
        m2m_changed.connect(_note_changed_members, sender=through)
    user_logged_in.connect(_note_login)
    user_logged_out.connect(_note_logout)


def name_current_author() -> str:
    """Whoever sent the request that is being answered, as the audit log names people."""
    request = getattr(HistoricalRecords.context, "request", None)
    user = getattr(request, "user", None)
    return f"user:{user.get_username()}" if user is not None and user.is_authenticated else "system"


def _note(kind: str, about: Model, **facts: Any) -> None:
    if User.objects.exists():  # the roles of a new site are no change: nobody is there yet
        audit.record_entry(
            kind=kind, actor=name_current_author(), subject=_make_subject(about), **facts
        )


def _make_subject(about: Model) -> str:
    return f"{about._meta.model_name}:{show_invisible_characters(str(about), 150)}"


def _remember(sender: type[User], instance: User, raw: bool, update_fields: Any, **_: Any) -> None:
    wanted = {*_FACTS, "password"}
    # the time of a log-in, for one
    if raw or (update_fields is not None and not wanted & set(update_fields)):
        setattr(instance, _BEFORE, instance)
        return
    setattr(instance, _BEFORE, User.objects.filter(pk=instance.pk).first() if instance.pk else None)


def _note_saved_user(
    sender: type[User], instance: User, created: bool, update_fields: Any, **_: Any
) -> None:
    before = instance.__dict__.pop(_BEFORE, None)
    if before is instance:
        return
    if created or before is None:
        _note("user.created", instance, **{name: _read_fact(instance, name) for name in _FACTS})
        return
    written = [name for name in _FACTS if update_fields is None or name in update_fields]
    changed = {name: [_read_fact(before, name), _read_fact(instance, name)] for name in written}
    changed = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
    if changed:
        _note("user.changed", instance, **changed)
    if "username" in changed:
        _rename_authors(before.username, instance.username)
    if before.password != instance.password:
        hashed_anew = _is_hashed_anew(instance, update_fields)
        only = {"only": "the same password, hashed again"} if hashed_anew else {}
        _note("user.password_changed", instance, **only)
        if not hashed_anew:  # Django ends the sessions, too
            tokens.revoke_tokens_of(user=instance, actor=name_current_author())


def _rename_authors(old: str, new: str) -> None:
    """Whoever has changed a launch stays known as its author under a new user name, and does not
    confirm it as another."""
    for server in Server.objects.filter(launch_by__isnull=False).order_by("pk"):
        authors = [
            f"user:{new}" if author == f"user:{old}" else author
            for author in server.launch_by or ()
        ]
        if authors != server.launch_by:
            Server.objects.filter(pk=server.pk).update(launch_by=authors)


def _is_hashed_anew(user: User, update_fields: Any) -> bool:
    """Whether Django itself stores the password that somebody has just logged in with, since its
    way of hashing has changed: it forgets the clear text before, which a new password has until it
    is stored (``AbstractBaseUser.check_password``)."""
    alone = update_fields is not None and set(update_fields) == {"password"}
    return alone and getattr(user, "_password", None) is None and user.has_usable_password()


def _read_fact(user: User, name: str) -> str | bool:
    value = getattr(user, name)
    return value if isinstance(value, bool) else show_invisible_characters(str(value), 200)


def _note_saved_group(
    sender: type[Group], instance: Group, created: bool, raw: bool, **_: Any
) -> None:
    if not raw:
        _note("group.created" if created else "group.saved", instance)


def _note_deletion(sender: type[Model], instance: Model, **_: Any) -> None:
    _note(f"{instance._meta.model_name}.deleted", instance)


def _note_changed_members(
    sender: type[Model],
    *,
    instance: Model,
    action: str,
    reverse: bool,
    model: type[Model],
    pk_set: Any,
    **_: Any,
) -> None:
    """Roles of a person, permissions of a person or a group; from whichever side they were
    changed."""
    if action not in _ADDED | _REMOVED or pk_set == set():
        return
    others = _list_changed_records(sender, instance, model, pk_set, reverse=reverse)
    verb = "given" if action in _ADDED else "taken"
    pairs = [(other, [instance]) for other in others] if reverse else [(instance, others)]
    for holder, what in pairs:
        if what:
            kind = "permissions" if isinstance(what[0], Permission) else "roles"
            _note(
                f"{holder._meta.model_name}.{kind}_{verb}",
                holder,
                **{kind: sorted(_name_record(each) for each in what)},
            )


def _list_changed_records(
    sender: Any, instance: Model, model: Any, pk_set: Any, *, reverse: bool
) -> list[Any]:
    there = model._default_manager.all()
    if model is Permission:
        # half of its name: a new site's roles have hundreds
        there = there.select_related("content_type")
    if pk_set is not None:
        return list(there.filter(pk__in=pk_set))
    mine = _name_column(sender, type(instance))
    theirs = _name_column(sender, model)
    found = sender._default_manager.filter(**{mine: instance}).values_list(theirs, flat=True)
    return list(there.filter(pk__in=list(found)))


def _name_column(through: Any, of: type[Model]) -> str:
    return next(field.name for field in through._meta.fields if field.related_model is of)


def _name_record(what: Model) -> str:
    if isinstance(what, Permission):
        return f"{what.content_type.app_label}.{what.codename}"
    return show_invisible_characters(str(what), 150)


def _note_login(sender: Any, request: HttpRequest | None, user: User, **_: Any) -> None:
    _note_visit("login.succeeded", request, user)


def _note_logout(sender: Any, request: HttpRequest | None, user: User | None, **_: Any) -> None:
    if user is not None:
        _note_visit("login.ended", request, user)


def _note_visit(kind: str, request: HttpRequest | None, user: User) -> None:
    # a session that no request has made: a script's, a test's
    if request is None or request.method is None:
        return
    who = f"user:{user.get_username()}"
    where = mask_client_address(request.META.get("REMOTE_ADDR", ""))
    audit.record_entry(
        kind=kind,
        actor=who,
        subject=f"login:{show_invisible_characters(user.get_username(), 150)}",
        place=where,
    )
