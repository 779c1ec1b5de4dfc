"""A provider's key goes where somebody who has it, or may confirm launches, has let it go: attacked
by every door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from mcpregistry.domain.errors import Conflict, Denied
from mcpregistry.models import AuditEntry
from mcpregistry.services.exchange.importing import import_file
from subagents.domain.destination import fingerprint
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.local_server import run_server
from subagents.llm.scripted.script import load
from subagents.models import ExpertTool, LanguageModel, Provider, Run
from subagents.runs import provider_probe
from subagents.services import experts, providers, runs
from tests.subagents.admin.test_pages import client_as
from tests.subagents.kit import Heard, confirmed, overhear

pytestmark = [pytest.mark.attack, pytest.mark.one_database]

KEY = "sk-planted-9d2"
DRAFT = "is a draft: the destination of its key and its requests is not confirmed"
REMEDY = (
    "Enter the key of the provider again. Or ask a user with the permission to confirm launches"
)
LIST = "/admin/subagents/provider/"


@pytest.fixture
def listener() -> Iterator[str]:
    """The attacker's, which answers like a provider."""
    with run_server(
        ScriptedModels(load({"m": {"turns": [{"text": "thanks"}], "repeat": True}}))
    ) as base:
        yield f"{base}/v1"


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Heard]:
    return overhear(monkeypatch)


def good(**fields: Any) -> Provider:
    """An admin's provider with a key and a model."""
    facts = {
        "slug": "good",
        "kind": "compatible",
        "base_url": "https://api.good.example/v1",
    } | fields
    provider = providers.save_provider(provider=Provider(**facts), actor="user:admin", key=KEY)
    LanguageModel.objects.create(provider=provider, name="m", free=True)
    assert provider.draft_problem() is None, "whoever enters the key says where it goes"
    return provider


def form(provider: Provider, **changed: Any) -> dict[str, Any]:
    """The change page as a browser sends it back."""
    facts = {name: getattr(provider, name) for name in ("slug", "kind", "base_url", "timeout")}
    return (
        facts
        | {"options": json.dumps(provider.options), "key": "", "headers": "", "enabled": "on"}
        | changed
    )


def after_a_test(provider: Provider) -> Provider:
    """As when Test is pressed: refused there, and refused again by the worker."""
    provider.refresh_from_db()
    with pytest.raises(Conflict, match=DRAFT):
        providers.request_test(provider=provider, actor="user:op")
    asyncio.run(provider_probe.probe(provider.pk, provider.models.get().pk))
    provider.refresh_from_db()
    return provider


CHANGES: dict[str, dict[str, Any]] = {
    "address": {"base_url": "LISTENER"},
    "kind": {"kind": "openrouter"},
    "headers": {"headers": "Host=evil.example"},
    "networks": {"allowed_networks": "127.0.0.1/32"},
    "options": {"options": '{"user": "me"}'},
}


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("what", CHANGES)
def test_an_operator_who_changes_where_a_key_goes_makes_a_draft_to_which_nothing_is_sent(
    live_db: None, listener: str, heard: list[Heard], what: str
) -> None:
    provider = good()
    changed = {name: text.replace("LISTENER", listener) for name, text in CHANGES[what].items()}
    operator = client_as("operator")
    page = operator.post(
        f"{LIST}{provider.pk}/change/", form(provider, **changed), follow=True
    ).content.decode()
    assert DRAFT in page
    assert REMEDY in page
    assert "Test</button>" not in page
    assert operator.get(f"{LIST}{provider.pk}/confirm/").status_code == 403
    assert (
        operator.post(
            f"{LIST}{provider.pk}/confirm/", {"shown": provider.destination_hash()}
        ).status_code
        == 403
    )
    provider = after_a_test(provider)
    assert DRAFT in provider.test_error
    assert REMEDY in provider.test_error
    assert not heard
    assert KEY not in page + provider.test_error


def test_a_run_on_a_draft_is_refused_with_the_remedy_and_takes_the_next_model(db: None) -> None:
    provider = good()
    model = provider.models.get()
    experts.save_expert(
        expert=ExpertTool(name="digest", description="d"), targets=[model], actor="test"
    )
    provider.base_url = "https://evil.example/v1"
    providers.save_provider(provider=provider, actor="user:op")
    with pytest.raises(Denied, match=DRAFT) as refusal:
        runs.start(expert="digest", arguments={}, origin="rest")
    assert REMEDY in str(refusal.value)
    assert not Run.objects.exists()


def test_whoever_enters_the_key_again_in_the_same_save_goes_on(db: None, listener: str) -> None:
    provider = good()
    operator = client_as("operator")
    page = f"{LIST}{provider.pk}/change/"
    operator.post(page, form(provider, base_url="https://other.example/v1", key="sk-own"))
    provider.refresh_from_db()
    assert (provider.draft_problem(), provider.key) == (None, "sk-own")
    # Not into private networks, and not with headers that somebody else has stored.
    operator.post(
        page, form(provider, base_url=listener, allowed_networks="127.0.0.1/32", key="sk-own")
    )
    provider.refresh_from_db()
    assert provider.draft_problem() is not None
    provider.allowed_networks = []
    provider.base_url = "https://other.example/v1"
    providers.save_provider(
        provider=provider, actor="user:admin", key=KEY, headers={"X-Auth": "stored-secret"}
    )
    assert provider.draft_problem() is None
    operator.post(
        page, form(provider, base_url="https://evil.example/v1", key="sk-own", headers="X-Auth=•••")
    )
    provider.refresh_from_db()
    assert provider.headers == {"X-Auth": "stored-secret"}
    assert provider.draft_problem() is not None


@pytest.mark.parametrize("key", ["${cred:prod_db}", "${SOME_VARIABLE}", "sk-${SOME_VARIABLE}"])
def test_a_reference_proves_nothing_so_it_waits_for_a_person_who_may_confirm(
    db: None, key: str
) -> None:
    own = Provider(slug="own", kind="compatible", base_url="https://evil.example/v1")
    providers.save_provider(provider=own, actor="user:op", key=key)
    assert own.draft_problem() is not None


def test_who_may_confirm_launches_looks_at_it_and_confirms_exactly_what_was_shown(db: None) -> None:
    provider = good()
    provider.base_url = "https://new.example/v1"
    providers.save_provider(provider=provider, actor="user:op", headers={"X-Team": "hidden-value"})
    admin = client_as("admin")
    page = f"{LIST}{provider.pk}/confirm/"
    seen = admin.get(page).content.decode()
    assert "https://new.example/v1" in seen
    assert "X-Team" in seen
    assert "hidden-value" not in seen
    assert KEY not in seen
    shown = provider.destination_hash()
    provider.base_url = "https://evil.example/v1"
    providers.save_provider(provider=provider, actor="user:op")  # between the look and the press
    late = admin.post(page, {"shown": shown})
    assert late.status_code == 409
    assert "was changed after this page was shown" in late.content.decode()
    provider.refresh_from_db()
    assert provider.draft_problem() is not None
    assert admin.post(page, {"shown": provider.destination_hash()}).status_code == 302
    provider.refresh_from_db()
    assert provider.draft_problem() is None
    assert provider.confirmed_by is not None
    entry = AuditEntry.objects.filter(kind="provider.confirmed").get()
    assert "https://evil.example/v1" in str(vars(entry))
    provider.timeout = 5
    providers.save_provider(provider=provider, actor="user:op")
    assert provider.draft_problem() is None, "what sends nothing elsewhere needs nobody"


def test_a_file_makes_drafts_too_and_back_at_what_was_confirmed_it_goes_on(db: None) -> None:
    provider = good()

    def take(url: str) -> None:
        entry = {"kind": "compatible", "base_url": url, "key": "${GOOD_KEY}"}
        raw = json.dumps({"mcps": {}, "tools": [], "providers": {"good": entry}}).encode()
        outcome = import_file(
            raw=raw,
            path="f.json",
            actor="user:admin",
            format_name="slipsnisse-extended",
            on_conflict="replace",
            may_rule=True,
            may_grant=True,
        )
        assert outcome.saved, outcome.refused
        provider.refresh_from_db()

    take("https://evil.example/v1")
    assert provider.draft_problem() is not None
    take("https://api.good.example/v1")
    assert provider.draft_problem() is None, "this destination somebody has confirmed"


REDIRECTING = (
    {"base_url": "LISTENER"},
    {"api_base": "LISTENER"},
    {"api_key": "x"},
    {"custom_llm_provider": "ollama"},
    {"extra_headers": {"Host": "evil"}},
    {"proxy": "LISTENER"},
    {"baseURL": "LISTENER"},
    {"extra_body": {}},
)


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.parametrize("option", REDIRECTING, ids=lambda option: next(iter(option)))
def test_no_option_and_no_override_says_where_a_request_goes(
    live_db: None, listener: str, heard: list[Heard], option: dict[str, Any]
) -> None:
    """The address empty, the kind the provider's own, and litellm's alias for it among the
    options."""
    provider = good(kind="openai", base_url="")
    operator = client_as("operator")
    text = json.dumps(option).replace("LISTENER", listener)
    page = operator.post(
        f"{LIST}{provider.pk}/change/", form(provider, options=text, key="sk-own"), follow=True
    )
    assert next(iter(option)) in page.content.decode()
    assert "Allowed options: " in page.content.decode()
    overrides = {
        "provider": provider.pk,
        "name": "m",
        "max_output": "4096",
        "buffer_tokens": "256",
        "overrides": text,
    }
    model = provider.models.get()
    page = operator.post(
        f"/admin/subagents/languagemodel/{model.pk}/change/", overrides, follow=True
    )
    assert "Allowed options: " in page.content.decode()
    provider.refresh_from_db()
    model.refresh_from_db()
    assert (provider.options, model.overrides) == ({}, {})
    raw = json.dumps(
        {
            "mcps": {},
            "tools": [],
            "providers": {"new": {"kind": "openai", "options": json.loads(text)}},
        }
    ).encode()
    outcome = import_file(
        raw=raw,
        path="f.json",
        actor="t",
        format_name="slipsnisse-extended",
        may_rule=True,
        may_grant=True,
    )
    assert not outcome.saved
    assert "Allowed options: " in str(outcome.refused)
    # However it came into the row: nothing is sent, and the reason is told.
    for rows, name in ((Provider.objects, "options"), (LanguageModel.objects, "overrides")):
        rows.update(**{name: json.loads(text)})
        confirmed(Provider.objects.get())
        asyncio.run(provider_probe.probe(provider.pk, model.pk))
        provider.refresh_from_db()
        assert "is a draft" in provider.test_error, name
        assert next(iter(option)) in provider.test_error
        rows.update(**{name: {}})
    assert not heard


def test_the_fingerprint_covers_everything_that_redirects() -> None:
    one = ("openai", "https://a/v1", [], {}, {})
    others = [
        ("ollama", *one[1:]),
        ("openai", "https://b/v1", *one[2:]),
        (*one[:2], ["10.0.0.0/8"], {}, {}),
        (*one[:3], {"Host": "b"}, {}),
        (*one[:4], {"user": "b"}),
    ]
    assert len({fingerprint(*each) for each in (one, *others)}) == 6  # type: ignore[arg-type]
