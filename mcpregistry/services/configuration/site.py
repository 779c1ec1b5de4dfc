"""The site's own settings: how long records are kept, and what happens where no rule fits."""

from __future__ import annotations

from django.contrib.auth.models import Group
from django.db import transaction
from django.db.models import F

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.scope import check_variable_scope
from mcpregistry.models import Configuration, Server
from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.records import audit


@transaction.atomic
def save_configuration(*, configuration: Configuration, actor: str) -> Configuration:
    """Change the site's settings. Raises ``ConfigInvalid``."""
    before = Configuration.load_for_update()
    take_current(configuration, own=("revision", "complete_for"))
    configuration.variable_scope = check_variable_scope(configuration.variable_scope)
    configuration.second_factor_roles = _check_roles(configuration.second_factor_roles)
    if not Configuration.history.exists():  # what it was before its first change
        Configuration.history.bulk_history_create(
            [before], default_change_reason="before the first change"
        )
    save_checked(configuration)
    _reconnect_users(before.variable_scope, configuration.variable_scope)
    facts = {
        "variable_scope": configuration.variable_scope,
        "payloads_days": configuration.keep_payloads_days,
        "calls_days": configuration.keep_calls_days,
        "history_days": configuration.keep_history_days,
        "second_factor_roles": configuration.second_factor_roles,
        "default_outcome": configuration.default_outcome,
        "auto_discovery": configuration.auto_discovery,
        "only_listed": configuration.only_listed,
        "sub_agent": configuration.sub_agent_enabled,
    }
    audit.record_entry(kind="configuration.changed", actor=actor, subject="configuration", **facts)
    return configuration


def _check_roles(names: list[str]) -> list[str]:
    known = set(Group.objects.filter(name__in=names).values_list("name", flat=True))
    if unknown := [name for name in names if name not in known]:
        raise ConfigInvalid(
            error_texts.say_not_found("role", unknown[0]),
            remedy="Use the name of an existing role or group.",
        )
    return sorted(known)


def _reconnect_users(before: dict[str, list[str]], now: dict[str, list[str]]) -> None:
    """Servers whose place was added or taken away connect again, so that none goes on with what it
    may not have."""
    changed = {
        place
        for name in {*before, *now}
        for place in set(before.get(name, ())) ^ set(now.get(name, ()))
    }
    slugs = [place.removeprefix("server:") for place in changed if place.startswith("server:")]
    if slugs:
        Server.objects.filter(slug__in=slugs).update(revision=F("revision") + 1)
