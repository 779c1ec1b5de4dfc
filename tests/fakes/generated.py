"""Sites of random shape: rows of every kind with random values of every column, saved by the
services.

What a service refuses is left out: any site that people could have made may come of it. The same
seed, the same site.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import IntegrityError, models, transaction
from django.utils import timezone

from controlplane.configuration.record_kinds import RecordKind, kind_of
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.models import (
    Agent,
    Budget,
    Channel,
    Configuration,
    Credential,
    Endpoint,
    EnergyPool,
    Grant,
    PolicyRule,
    RegistrySource,
    Server,
    SlackIdentity,
    Tool,
    Workspace,
)
from mcpregistry.services.access import agents, credentials, grants
from mcpregistry.services.budgets import books
from mcpregistry.services.configuration import site as settings_of
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.energy import pools
from mcpregistry.services.notifications import outbox
from mcpregistry.services.policy import rules
from mcpregistry.services.registry import sources
from mcpregistry.services.servers import lifecycle
from subagents.effort import agents as effort
from subagents.models import EffortAgent, ExpertTool, Headend, LanguageModel, Provider
from subagents.services import experts, providers
from subagents.services.headends import configuring as headends

ACTOR = "user:test"
ODD = (
    "",
    "plain",
    "Ödd “quotes” 'single'",
    "a: b\n- c # d\n",
    "  spaces  ",
    "~",
    "null",
    "no",
    "1e3",
    "0x1f",
    "2026-01-01",
    "true",
    "{secret: x}",
    "${NOT_ASKED}",
    "tab\there",
    "🧦 日本語 العربية",
    "trailing \\",
    "%s {0} {{ x }}",
    "-",
    "<b>&amp;</b>",
    "a" * 300,
    "\x85",
    "a\u2028b\u2029",
    "\ufeffmark",
    "a\r\nb\r",
    "\x1b[31m\x7f",
    "e\u0301 \u200b",
    " \n",
    "? key",
    "!tag &a *a",
    "12:30",
    "a: {b: [c]}",
)
_WAYS = ("stdio", "http", "sse", "websocket")
_SIGNING = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()
_PERMISSIONS = (
    "view_server",
    "decide_approval",
    "view_run",
    "change_tool",
    "add_maintenancerequest",
)


class Maker:
    """Makes one site. ``refused`` counts what the services did not take. ``tag`` begins its names:
    another's are others."""

    def __init__(self, seed: int, tag: str = "") -> None:
        self.pick = random.Random(seed)
        self.tag = tag
        self.made = 0
        self.refused = 0
        self.reasons: list[str] = []

    def site(self) -> None:
        """Rows of every kind, in an order in which they can name each other."""
        self.people = [
            User.objects.create_user(f"{self.tag}p{n} {self.word()}"[:150]) for n in range(2)
        ]
        self.people[0].groups.set(Group.objects.filter(name="approver"))
        for kind, most in (
            (self._role, 2),
            (self._credential, 3),
            (self._server, 4),
            (self._pool, 2),
            (self._registry, 2),
            (self._agent, 3),
            (self._endpoint, 3),
            (self._budget, 2),
            (self._workspace, 2),
            (self._provider, 3),
            (self._expert, 2),
            (self._effort, 1),
            (self._headend, 2),
            (self._rule, 4),
            (self._grant, 8),
            (self._channel, 2),
            (self._slack, 2),
            (self._settings, 1),
        ):
            for number in range(self.pick.randint(1, most)):
                self._try(kind, number)

    def _try(self, make: Callable[[int], object], number: int) -> None:
        try:
            with transaction.atomic():
                make(number)
            self.made += 1
        except (SlipsnisseError, ValidationError, IntegrityError) as error:
            self.refused += 1
            self.reasons.append(f"{make.__name__}: {error}")

    # Values

    def word(self) -> str:
        """An odd text."""
        return self.pick.choice(ODD)

    def some(self, rows: Any, most: int = 3) -> list[Any]:
        """Some rows of a model, perhaps none."""
        known = list(rows.order_by("pk"))
        return self.pick.sample(known, self.pick.randint(0, min(most, len(known))))

    def one(self, rows: Any) -> Any:
        """Any row, or None where there is none."""
        known = list(rows.order_by("pk"))
        return self.pick.choice(known) if known else None

    def chance(self, of: float = 0.5) -> bool:
        return self.pick.random() < of

    def json(self, depth: int = 2) -> Any:
        """Any JSON value."""
        plain = [None, True, False, 0, -1, 1.5, 2**53, self.word(), ""]
        if not depth:
            return self.pick.choice(plain)
        few = range(self.pick.randint(0, 3))
        return self.pick.choice(
            [
                *plain,
                [self.json(depth - 1) for _ in few],
                {self.word(): self.json(depth - 1) for _ in few},
            ]
        )

    def fill(self, of: RecordKind, row: Any, /, **fixed: Any) -> Any:
        """Random values of the columns that the document has; ``fixed`` as they are given."""
        for column in of.fields():
            if column.name in fixed:
                setattr(row, column.name, fixed[column.name])
            elif not column.is_relation and not column.many_to_many and self.chance(0.6):
                with suppress(NotImplementedError):
                    setattr(row, column.name, self._value(column))
        return row

    def _value(self, column: models.Field[Any, Any]) -> Any:
        if column.null and self.chance(0.2):
            return None
        if column.choices:
            return self.pick.choice([value for value, _ in column.flatchoices])
        if isinstance(column, models.BooleanField):
            return self.chance()
        if isinstance(column, models.DecimalField):
            return Decimal(self.pick.randint(0, 10**5)).scaleb(-(column.decimal_places or 0))
        if isinstance(column, models.IntegerField | models.FloatField):
            return self._number(column)
        if isinstance(column, models.DateTimeField):
            return timezone.now() + timedelta(seconds=self.pick.randint(60, 10**7))
        if isinstance(column, models.CharField | models.TextField):
            return self.word()[: column.max_length or 10_000]
        raise NotImplementedError  # lists and objects have shapes of their own

    def _number(self, column: models.Field[Any, Any]) -> float:
        least = max(
            [
                0,
                *(
                    each.limit_value
                    for each in column.validators
                    if isinstance(each, MinValueValidator)
                ),
            ]
        )
        most = min(
            [
                10**6,
                *(
                    each.limit_value
                    for each in column.validators
                    if isinstance(each, MaxValueValidator)
                ),
            ]
        )
        whole = isinstance(column, models.IntegerField)
        number = self.pick.choice([least, most, self.pick.uniform(least, most)])
        return round(number) if whole else float(number)

    # Rows

    def _role(self, number: int) -> None:
        group = Group.objects.create(name=f"{self.tag}{self.word()} {number}"[:150])
        group.permissions.set(
            Permission.objects.filter(codename__in=self.pick.sample(_PERMISSIONS, 2))
        )

    def _credential(self, number: int) -> None:
        row = self.fill(
            kind_of("credentials"), Credential(name=f"{self.tag}cred-{number}"), scope=[]
        )
        places = [
            f"{what}-{n}"
            for what in (f"server:{self.tag}s", f"provider:{self.tag}llm")
            for n in range(4)
        ]
        scope = self.pick.sample(places, self.pick.randint(0, 8))
        credentials.save_credential(
            credential=row, actor=ACTOR, value=self.word() or None, scope=scope
        )

    def _server(self, number: int) -> None:
        way = self.pick.choice(_WAYS)
        address = f"{'wss' if way == 'websocket' else 'https'}://h{number}.example.org/mcp"
        local = {
            "command": ["/bin/echo", self.word(), "--api-key", "k3y", f"--token={number}"],
            "url": "",
            "cwd": "",
            "allowed_networks": [],
            "sandbox_read": [],
            "sandbox_write": [],
        }
        remote = local | {
            "command": [],
            "url": address + self.pick.choice(["", "?token=abc", "?a=b"]),
            "allowed_networks": self.pick.choice([[], ["10.0.0.0/8"]]),
        }
        row = Server(slug=f"{self.tag}s-{number}")
        self.fill(kind_of("servers"), row, transport=way, **(local if way == "stdio" else remote))
        pairs = (
            {"PLAIN": self.word() or "x", "REF": "${NAME}", "secret": self.word()}
            if self.chance()
            else {}
        )
        if way == "stdio":
            row.env = pairs
        else:
            row.headers = {"X-Odd": "v", "Authorization": "Bearer t0p"} if self.chance() else {}
        if self.chance(0.3):
            row.extra = {"x": self.json()}
        lifecycle.save_server(server=row, actor=ACTOR)
        if self.chance(0.7):
            lifecycle.confirm_launch(server=row, actor=ACTOR, launch_hash=row.launch_hash())
        listed = [
            self._definition(f"t{each}{self.pick.choice(['', '-é', '_x'])}")
            for each in range(self.pick.randint(0, 4))
        ]
        observe.observe(server=row, listed=listed)
        for tool in self.some(row.tools.exclude(latest=None), 4):
            decisions.approve(definition=tool.latest, actor=ACTOR)
            self._adjust(Tool.objects.get(pk=tool.pk))
        if self.chance(0.2):
            lifecycle.disable_server(server=row, actor=ACTOR)

    def _definition(self, name: str) -> dict[str, Any]:
        schema = {
            "type": "object",
            "properties": {
                "q": {"type": "string", "description": self.word(), "default": self.json(1)}
            },
        }
        more = {"annotations": {"readOnlyHint": self.chance()}} if self.chance() else {}
        return {"name": name, "description": self.word(), "inputSchema": schema, **more}

    def _adjust(self, tool: Tool) -> None:
        self.fill(kind_of("tools"), tool)
        with suppress(ValidationError):
            tool.full_clean()
            tool.save()

    def _pool(self, number: int) -> None:
        fixed = {
            "critical": self.pick.choice([0.0, 2.5, 10.0]),
            "resume": self.pick.choice([10.0, 30.0]),
        }
        row = self.fill(kind_of("energy_pools"), EnergyPool(slug=f"{self.tag}p-{number}"), **fixed)
        pools.save_pool(pool=row, actor=ACTOR)

    def _registry(self, number: int) -> None:
        row = self.fill(kind_of("registries"), RegistrySource(slug=f"{self.tag}r-{number}"))
        row.base_url = f"https://r{number}.example/{self.tag}"
        row.allowed_networks = self.pick.choice([[], ["10.0.0.0/8"]])
        sources.save_source(source=row, actor=ACTOR)

    def _effort(self, number: int) -> None:
        row = self.fill(kind_of("effort_agents"), EffortAgent())
        row.expert = self.one(ExpertTool.objects)
        effort.save_effort_agent(row=row, actor=ACTOR)

    def _headend(self, number: int) -> None:
        kind = self.pick.choice(["rest", "openai", "anthropic"])
        row = self.fill(
            kind_of("headends"), Headend(slug=f"{self.tag}h-{number}"), kind=kind, aliases={}
        )
        row.path = f"{self.tag.lower()}h-{number}/v1"
        row.endpoint = self.one(Endpoint.objects)
        headends.save_headend(row=row, actor=ACTOR)

    def _agent(self, number: int) -> None:
        owner = self.pick.choice([None, *self.people])
        capabilities = self.pick.choice([[], ["mcp_*"], [f"mcp_{self.tag}s-0::*"]])
        row = self.fill(
            kind_of("agents"),
            Agent(slug=f"{self.tag}a-{number}"),
            owner=owner,
            capabilities=capabilities,
        )
        row.energy_pool = self.one(EnergyPool.objects) if self.chance() else None
        agents.save_agent(agent=row, actor=ACTOR)

    def _budget(self, number: int) -> None:
        fixed = {
            "soft": self.pick.choice([None, Decimal(1)]),
            "hard": Decimal(self.pick.choice([1, 20])),
        }
        zone = self.pick.choice(["UTC", "Asia/Kolkata"])
        row = self.fill(
            kind_of("budgets"), Budget(slug=f"{self.tag}b-{number}"), time_zone=zone, **fixed
        )
        if self.chance():
            row.agent = self.one(Agent.objects)
        else:
            row.endpoint = self.one(Endpoint.objects)
        books.save_budget(budget=row, actor=ACTOR)

    def _endpoint(self, number: int) -> None:
        agents.save_endpoint(
            endpoint=self.fill(kind_of("endpoints"), Endpoint(slug=f"{self.tag}e-{number}")),
            actor=ACTOR,
        )

    def _workspace(self, number: int) -> None:
        row = Workspace(directory=f"/srv/{self.tag}{number}/{self.word()}"[:200].rstrip())
        row.endpoint = self.one(Endpoint.objects)
        row.agent = self.one(Agent.objects)
        agents.save_workspace(workspace=row, actor=ACTOR)

    def _provider(self, number: int) -> None:
        fixed = {
            "kind": "compatible",
            "base_url": f"https://llm{number}.example.org/v1",
            "options": {},
            "allowed_networks": [],
        }
        row = self.fill(kind_of("providers"), Provider(slug=f"{self.tag}llm-{number}"), **fixed)
        key = self.pick.choice(["", "k3y", f"${{cred:{self.tag}cred-0}}", "x" * 200])
        row = providers.save_provider(
            provider=row, actor=ACTOR, key=key, headers={"X-A": "v"} if self.chance() else {}
        )
        if self.chance():
            providers.confirm_destination(provider=row, actor=ACTOR, shown=row.destination_hash())
        for each in range(self.pick.randint(0, 3)):
            model = LanguageModel(provider=row, name=f"m/{each} {self.word()}"[:200].strip())
            self._try(lambda _, model=model: self._model(model), 0)

    def _model(self, row: LanguageModel) -> None:
        fixed = {
            "context_window": self.pick.choice([None, 2**31 - 1]),
            "max_output": self.pick.choice([1, 100_000]),
            "buffer_tokens": self.pick.choice([0, 256]),
            "tokenizer": self.pick.choice(["", "tiktoken:o200k_base"]),
            "overrides": self.pick.choice([{}, {"temperature": 0.2}]),
        }
        providers.save_model(model=self.fill(kind_of("models"), row, **fixed), actor=ACTOR)

    def _expert(self, number: int) -> None:
        schema = {
            "type": "object",
            "properties": {"a": {"description": self.word(), "default": self.json(3)}},
        }
        fixed = {
            "arguments": {
                "q": {"type": "string", "description": self.word(), "default": self.json()}
            },
            "output_schema": self.pick.choice([None, schema]),
            "description": self.word() or "d",
            "awaited_tools": self.pick.choice([[], ["s-9::later"]]),
        }
        row = self.fill(kind_of("experts"), ExpertTool(name=f"{self.tag}expert_{number}"), **fixed)
        row = experts.save_expert(expert=row, targets=self.some(LanguageModel.objects), actor=ACTOR)
        experts.offer(
            expert=row,
            agents=self.some(Agent.objects),
            endpoints=self.some(Endpoint.objects),
            actor=ACTOR,
        )

    def _rule(self, number: int) -> None:
        fixed = {"condition": self.pick.choice(["", '"a" == "b"', 'tool.name == "x\\"y"'])}
        row = self.fill(
            kind_of("rules"),
            PolicyRule(name=f"{self.tag}r {number} {self.word()}"[:100].strip()),
            **fixed,
        )
        for column, model in (
            ("agent", Agent),
            ("endpoint", Endpoint),
            ("server", Server),
            ("tool", Tool),
            ("approvers", Group),
        ):
            setattr(row, column, self.one(model.objects) if self.chance(0.3) else None)
        rules.save_rule(rule=row, actor=ACTOR, unanswered=True)

    def _grant(self, number: int) -> None:
        holder = (
            {"agent": self.one(Agent.objects)}
            if self.chance()
            else {"endpoint": self.one(Endpoint.objects)}
        )
        what = (
            {"server": self.one(Server.objects)}
            if self.chance()
            else {"tool": self.one(Tool.objects)}
        )
        row = self.fill(kind_of("grants"), Grant(**holder, **what), argument_pins={})
        if self.chance(0.3) and "agent" in holder:
            row.argument_pins = {"q": self.json(1)}
        grants.save_grant(grant=row, actor=ACTOR)

    def _channel(self, number: int) -> None:
        way = self.pick.choice(["webhook", "email", "slack"])
        fixed = {
            "events": self.pick.choice([[], ["asked"]]),
            "allowed_networks": [],
            "room": "C0123" if way == "slack" else "",
            "addresses": ["b@example.org", "a@example.org"] if way == "email" else [],
        }
        row = self.fill(
            kind_of("channels"),
            Channel(name=f"{self.tag}c {number} {self.word()}"[:100]),
            kind=way,
            **fixed,
        )
        url = {"url": f"https://h{number}.example.org/k3y?x={number}", "signing": _SIGNING}
        row.access = {
            "webhook": url,
            "email": {},
            "slack": {"token": "xoxb-t0p", "signing": "0123456789abcdef"},
        }[way]
        outbox.save_channel(
            channel=row,
            actor=ACTOR,
            servers=self.some(Server.objects),
            rules=self.some(PolicyRule.objects),
        )

    def _slack(self, number: int) -> None:
        row = SlackIdentity(
            team="T1", member=f"U{self.tag}{number}", user=self.pick.choice(self.people)
        )
        outbox.save_slack_identity(identity=row, actor=ACTOR)

    def _settings(self, number: int) -> None:
        row = self.fill(
            kind_of("configuration"),
            Configuration.load(),
            variable_scope={"NAME": [f"server:{self.tag}s-{n}" for n in range(4)]},
        )
        settings_of.save_configuration(configuration=row, actor=ACTOR)


def site(seed: int, tag: str = "") -> Maker:
    """Make it in the database of this process."""
    maker = Maker(seed, tag)
    # Secrets of a server may name variables of its scope only, so the settings come first as well.
    maker._settings(0)
    maker.site()
    return maker


def stored(value: Any) -> str:
    """As text, to compare."""
    return json.dumps(value, sort_keys=True, default=str)
