"""What docs/how-to-add.md asks for: whoever adds one of a kind adds it everywhere."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from typing import get_args

from mcpregistry.admin.notifications import ChannelAdmin
from mcpregistry.admin.rules import PolicyRuleAdmin
from mcpregistry.api.schemas.policy import RuleChange, RuleOut
from mcpregistry.api.schemas.servers import TransportName
from mcpregistry.domain.formats import FORMATS
from mcpregistry.domain.formats.keys import ALL_BY_NAME
from mcpregistry.domain.notifications.events import ChannelKind
from mcpregistry.domain.policy.rules import RuleSpec
from mcpregistry.domain.servers.target import TransportKind
from mcpregistry.downstream.transports.channel_registry import CHANNELS
from mcpregistry.models import Channel, PolicyRule
from mcpregistry.models.server import Transport
from mcpregistry.services.notifications import outbox, senders
from mcpregistry.services.policy.drafts import NAMED, PLAIN
from mcpregistry.services.servers.lifecycle import SCHEMES
from tests.externals import ROOT

SAMPLES = ROOT / "tests" / "domain" / "formats" / "samples"
GUIDE = ROOT / "docs" / "how-to-add.md"
TESTING = ROOT / "docs" / "testing.md"
EXPLANATION = ROOT / "docs" / "explanation"


def test_a_transport_is_known_everywhere() -> None:
    known = set(Transport.values)
    assert (
        {*get_args(TransportKind)}
        == {*CHANNELS}
        == {*ALL_BY_NAME}
        == {*get_args(TransportName)}
        == known
    )
    assert {*SCHEMES} == known - {Transport.STDIO}


def test_every_format_has_a_real_sample() -> None:
    assert {folder.name for folder in SAMPLES.iterdir() if any(folder.iterdir())} == {*FORMATS}


def test_a_field_of_a_rule_is_known_everywhere() -> None:
    edited = {field.name for field in PolicyRule._meta.concrete_fields} - {"id", "created_at"}
    rows = [row for _, group in PolicyRuleAdmin.fieldsets or () for row in group["fields"]]
    shown = {name for row in rows for name in ([row] if isinstance(row, str) else row)}
    assert {*PLAIN, *NAMED} == edited == shown == {*RuleChange.model_fields}
    assert {*RuleOut.model_fields} == edited | {"id", "created_at"}
    decides = {re.sub(r"_id$", "", field.name) for field in fields(RuleSpec)}
    assert decides - {"id", "group"} == edited - {"note", "enabled", "draft", "approvers"}


def test_a_kind_of_channel_is_known_everywhere() -> None:
    assert {*senders._WAYS} == {*outbox._ACCESS} == {*ChannelKind}
    assert {kind for kind, _ in Channel.KINDS} == {kind.value for kind in ChannelKind}
    classes = {
        name for _, group in ChannelAdmin.fieldsets or () for name in group.get("classes", ())
    }
    assert {f"sn-kind-{kind.value}" for kind in ChannelKind} <= classes


def test_the_guides_name_files_that_there_are() -> None:
    """In CONTRIBUTING.md, the two guides and the explanations for developers, each path in
    backticks that ends in .py exists under some root, and each file without a directory
    anywhere."""
    roots = [ROOT, ROOT / "mcpregistry"]
    roots_of_guides = [*roots, ROOT / "subagents", ROOT / "tests"]
    folders = ("controlplane", "mcpregistry", "subagents", "tests")
    files = {path.name for folder in folders for path in (ROOT / folder).rglob("*.py")}
    files.add("manage.py")
    pages = [GUIDE, TESTING, ROOT / "CONTRIBUTING.md", *sorted(EXPLANATION.rglob("*.md"))]
    for page in pages:
        allowed = roots if page.is_relative_to(EXPLANATION) else roots_of_guides
        named = {
            found
            for found in re.findall(r"`([\w./-]+\.py)", page.read_text())
            if "NAME" not in found and not found.startswith(".")
        }
        gone = sorted(
            name
            for name in named
            if not (
                any((root / name).exists() for root in allowed) if "/" in name else name in files
            )
        )
        assert gone == [], page.name
    assert {"architecture.md", "code-map.md", "processes-leases.md"} <= {
        page.name for page in pages
    }


def test_dependencies_are_explained() -> None:
    explained = (EXPLANATION / "dependencies.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", line)[0] for line in project["dependencies"]]  # type: ignore[index]
    assert [name for name in names if not re.search(rf"^\| .*\b{name}\b", explained, re.M)] == []
