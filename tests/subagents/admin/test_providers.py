"""The first real provider: what is wrong is refused when saved, a test says whether it answers,
prices have a date."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.models import AuditEntry
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.local_server import run_server
from subagents.llm.scripted.script import load
from subagents.models import ExpertTool, LanguageModel, Provider, Run
from subagents.queries import run_totals
from subagents.runs import provider_probe
from subagents.services import experts, providers, runs
from tests.subagents.admin.test_pages import client_as
from tests.subagents.kit import ready_provider

KEY = "sk-canary-3c1"
LIST = "/admin/subagents/provider/"
MODELS = "/admin/subagents/languagemodel/"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(providers, "send_task", lambda *message: found.append(message))
    return found


def form(**changed: Any) -> dict[str, Any]:
    return {
        "slug": "acme",
        "kind": "openai",
        "options": "",
        "timeout": "60",
        "enabled": "on",
    } | changed


def model_form(provider: Provider, **changed: Any) -> dict[str, Any]:
    return {
        "provider": provider.pk,
        "name": "small",
        "max_output": "4096",
        "buffer_tokens": "256",
    } | changed


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"key": f"Bearer {KEY}"}, "Enter only the key"),
        ({"key": f"{KEY} more"}, "Enter only the key"),
        ({"kind": "compatible"}, "The base URL of a compatible server is required"),
        (
            {"kind": "compatible", "base_url": "http://host/v1/chat/completions"},
            "Enter http://host/v1 instead",
        ),
        ({"kind": "compatible", "base_url": "ftp://host"}, "valid URL"),
        ({"kind": "compatible", "base_url": "http://host:x/v1"}, "valid URL"),
        ({"kind": "compatible", "base_url": "http://me:canary@host/v1"}, "user name or password"),
        ({"options": "[1]"}, "must be a JSON object"),
        ({"options": '{"stream": true}'}, "reserved for the site"),
        ({"kind": "ollama", "options": '{"numctx": 1}'}, "does not have these options: numctx"),
    ],
)
def test_a_wrong_provider_is_refused_with_the_remedy(
    db: None, changed: dict[str, Any], words: str
) -> None:
    answer = client_as("admin").post(f"{LIST}add/", form(**changed), follow=True).content.decode()
    assert words in answer
    assert KEY not in answer
    assert not Provider.objects.exists()


def test_a_key_is_kept_replaced_and_removed_and_only_its_presence_is_told(db: None) -> None:
    admin = client_as("admin")
    page = f"{LIST}1/change/"
    assert admin.post(f"{LIST}add/", form(key=KEY)).status_code == 302
    provider = Provider.objects.get()
    page = f"{LIST}{provider.pk}/change/"
    assert "A key is stored." in admin.get(page).content.decode()
    admin.post(page, form(key="", slug="other"))
    provider.refresh_from_db()
    assert (provider.key, provider.slug, provider.options) == (KEY, "other", {})
    seen = client_as("viewer").get(page).content.decode()
    assert KEY not in seen
    assert "•••" in seen
    admin.post(page, form(remove_key="on"))
    provider.refresh_from_db()
    assert provider.sealed_key == ""
    shown = admin.get(page).content.decode()
    assert "No key is stored." in shown
    assert "This provider cannot be used." in shown


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"context_window": "4000"}, "use the whole context window"),
        ({"tokenizer": "bpe"}, "is not a valid tokenizer"),
        ({"overrides": '{"model": "x"}'}, "reserved for the site"),
        ({"overrides": '{"topK": 3}'}, "does not have these options: top_k"),
        ({"overrides": '{"maxOutputTokens": 3}'}, "is not an option"),
        ({"overrides": "[]x"}, "valid JSON"),
        ({"input_price": "-1"}, "greater than or equal to 0"),
    ],
)
def test_a_wrong_model_is_refused_with_the_remedy(
    db: None, changed: dict[str, Any], words: str
) -> None:
    provider = Provider.objects.create(slug="acme", kind="openai")
    answer = (
        client_as("admin")
        .post(f"{MODELS}add/", model_form(provider, **changed), follow=True)
        .content.decode()
    )
    assert words in answer
    assert not LanguageModel.objects.exists()


def test_prices_that_are_changed_get_their_date(db: None) -> None:
    provider = Provider.objects.create(slug="acme", kind="openai")
    admin = client_as("admin")
    before = timezone.now().date()
    assert (
        admin.post(
            f"{MODELS}add/", model_form(provider, input_price="3", output_price="15")
        ).status_code
        == 302
    )
    model = LanguageModel.objects.get()
    assert model.prices_from in {before, timezone.now().date()}, "today, on either side of midnight"
    dated = model_form(provider, input_price="2", output_price="15", prices_from="2026-01-31")
    admin.post(f"{MODELS}{model.pk}/change/", dated)
    model.refresh_from_db()
    assert (model.prices_from, model.input_price) == (date(2026, 1, 31), Decimal(2))


def test_a_test_needs_a_model_and_asks_a_worker(
    db: None, sent: list[Any], django_capture_on_commit_callbacks: Any
) -> None:
    provider = ready_provider("acme", kind="openai")
    admin = client_as("admin")
    press = f"{LIST}{provider.pk}/do/test/"
    assert "Add a model to this provider" in admin.post(press, follow=True).content.decode()
    model = LanguageModel.objects.create(provider=provider, name="small")
    with django_capture_on_commit_callbacks(execute=True):
        admin.post(press)
    assert sent == [("subagents.tasks.test_provider", provider.pk, model.pk)]
    provider.refresh_from_db()
    assert provider.being_tested
    assert admin.get(f"{LIST}{provider.pk}/live/").status_code == 200
    assert AuditEntry.objects.filter(kind="provider.test_asked").count() == 1
    providers.note_test(provider_id=provider.pk, answer="<script>ready", error="", took_ms=12)
    shown = admin.get(f"{LIST}{provider.pk}/live/")
    assert shown.status_code == 286
    assert "&lt;script&gt;ready" in shown.content.decode()
    assert provider.history.count() == 1  # made; a test is no change


@pytest.fixture
def base() -> Iterator[str]:
    script = {
        "plain": {"turns": [{"text": "ready"}]},
        "locked": {
            "turns": [{"text": "x", "attempts": [{"status": 401, "message": f"bad key {KEY}"}]}]
        },
        "gone": {
            "turns": [{"text": "x", "attempts": [{"status": 404, "message": "no such model"}]}]
        },
    }
    with run_server(ScriptedModels(load(script))) as address:
        yield address


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "answer", "error"),
    [
        ("plain", "ready", ""),
        ("locked", "", "Enter the key again"),
        ("gone", "", "Check the name of the model"),
    ],
)
def test_what_the_provider_answers_is_noted_with_what_to_do(
    live_db: None, base: str, name: str, answer: str, error: str
) -> None:
    provider = ready_provider("acme", kind="compatible", base_url=f"{base}/v1", key=KEY)
    model = LanguageModel.objects.create(provider=provider, name=name)
    asyncio.run(provider_probe.probe(provider.pk, model.pk))
    provider.refresh_from_db()
    assert provider.test_answer == answer
    assert error in provider.test_error
    assert bool(provider.test_error) is bool(error)
    assert KEY not in provider.test_error
    assert not provider.being_tested


def test_what_expert_tools_saved_is_on_the_overview_their_pages_and_in_rest(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "wake", lambda run_id: None)
    model = LanguageModel.objects.create(
        provider=Provider.objects.create(slug="s", kind="scripted"), name="m"
    )
    expert = experts.save_expert(
        expert=ExpertTool(name="digest", description="d"), targets=[model], actor="test"
    )
    for context, money in ((-500, -0.25), (-40, None), (100, 0.05)):
        saved = {
            "context_saved": context,
            "definitions_saved": 900,
            "reread_tax": 2.0,
            "results": 1,
            "calls": 1,
            "returned": 1,
            "compression": 1.0,
        } | ({"money_saved": money} if money is not None else {})
        run = runs.start(expert="digest", arguments={}, origin="rest")
        Run.objects.filter(pk=run.pk).update(
            state="done", finished_at=timezone.now(), savings=saved, cost=Decimal("0.01")
        )
    totals = run_totals()
    assert (totals["runs"], totals["done"], totals["saved"], totals["definitions"]) == (
        3,
        3,
        -440,
        900,
    )
    assert totals["money"] == pytest.approx(-0.2)
    assert [each["expert_name"] for each in totals["experts"]] == ["digest"]
    viewer = client_as("viewer")
    for page in ("/admin/", f"/admin/subagents/experttool/{expert.pk}/change/"):
        shown = viewer.get(page).content.decode()
        assert '<td class="sn-number sn-bad">-440</td>' in shown, page
        assert '<td class="sn-number sn-bad">-$0.20</td>' in shown, page
    assert "costs its callers more context" in shown
    assert "-40, 100" in shown  # of a call: p50, p95
    rest = viewer.get("/api/v1/savings?days=7").json()
    assert (rest["saved"], rest["experts"][0]["expert_name"], rest["days"]) == (-440, "digest", 7)
    assert viewer.get("/api/v1/savings?days=0").status_code == 422
