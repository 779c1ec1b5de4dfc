"""The copy of a registry: whole at first, then what has changed; lies are refused, and nothing
half-read counts as read."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from mcpregistry.api.schemas.registry import registry_out
from mcpregistry.db import read_database_now
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.models import AuditEntry, Install, RegistryEntry, RegistrySource, Server
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.registry import sources, sync
from tests.fakes import registry as fake
from tests.fakes.registry import PYPI, Registry, entry, told
from tests.waiting import HANG_LIMIT

pytestmark = pytest.mark.django_db
LOOPBACK = ["127.0.0.0/8"]


@pytest.fixture(scope="module")
def server():
    with fake.running() as running:
        yield running


@pytest.fixture
def registry(server) -> Registry:
    server.entries = []
    server.at_most = 100
    server.receiver.requests.clear()
    server.receiver.answers.clear()
    return server


@pytest.fixture
def source(registry) -> RegistrySource:
    row = RegistrySource(slug="official", base_url=registry.url, allowed_networks=LOOPBACK)
    return sources.save_source(source=row, actor="user:ann")


def read(source: RegistrySource, **how: Any) -> RegistrySource:
    found = sync.sync_source(source_id=source.pk, **how)
    assert found is not None
    return found


def names(**how: Any) -> set[str]:
    return set(RegistryEntry.objects.filter(**how).values_list("name", flat=True))


def test_the_first_reading_takes_every_page_and_the_next_what_has_changed(registry, source):
    registry.entries = [
        entry(f"io.example/s{n}", at=f"2026-10-0{n}T00:00:00Z") for n in range(1, 6)
    ]
    registry.at_most = 2
    after = read(source)
    assert (after.error, after.pages, after.skipped, after.lease_until) == ("", 3, 0, None)
    assert after.full_at == after.synced_at == after.tried_at
    assert names() == {f"io.example/s{n}" for n in range(1, 6)}
    assert registry.asked[0] == {"limit": "100", "include_deleted": "true"}
    registry.receiver.requests.clear()
    registry.entries += [entry("io.example/late", at="2026-10-05T00:00:00Z")]
    after = read(source)
    assert registry.asked == [{"limit": "100", "updated_since": "2026-10-04T23:55:00Z"}]
    assert (after.error, after.full_at < after.synced_at) == ("", True)
    assert "io.example/late" in names()


def test_once_a_week_all_is_read_and_what_is_not_there_any_more_is_gone(registry, source):
    registry.entries = [
        entry("io.example/stays"),
        entry("io.example/goes", "1.0.0"),
        entry("io.example/goes", "2.0.0", published="2026-11-01T00:00:00Z"),
    ]
    read(source)
    assert RegistryEntry.objects.filter_offered().get(name="io.example/goes").version == "2.0.0"
    registry.entries = registry.entries[:2]
    read(source)
    assert names(status="gone") == set(), "a reading of what has changed shows nobody gone"
    RegistrySource.objects.update(full_at=read_database_now() - timedelta(days=8))
    read(source)
    assert RegistryEntry.objects.get(status="gone").version == "2.0.0"
    assert RegistryEntry.objects.filter_offered().get(name="io.example/goes").version == "1.0.0"


def test_the_newest_version_is_the_one_published_last_that_was_not_taken_back(registry, source):
    registry.entries = [
        entry("io.example/x", "2.0.0", published="2026-10-03T00:00:00Z", status="deleted"),
        entry(
            "io.example/x",
            "1.1.0",
            published="2026-10-02T00:00:00Z",
            status="deprecated",
            message="Use y.",
        ),
        entry("io.example/x", "1.0.0", published="2026-10-01T00:00:00Z"),
    ]
    read(source)
    newest = RegistryEntry.objects.filter_offered().get()
    assert (newest.version, newest.status, newest.status_message) == (
        "1.1.0",
        "deprecated",
        "Use y.",
    )


def test_entries_that_cannot_be_used_are_counted_and_the_others_kept(registry, source):
    old = {"server": {"name": "a/b", "version_detail": {"version": "1"}}}
    registry.entries = [
        entry("io.example/good"),
        entry("no slash"),
        entry("io.example/range", "^1.0.0"),
        entry("io.example/latest", "latest"),
        entry("io.example/long", extra="x" * 70_000),
        old,
        {"server": 3},
        entry("io.example/odd", status="odd"),
    ]
    after = read(source)
    assert (after.error, after.skipped, names()) == ("", 7, {"io.example/good"})
    assert after.skipped_why


@pytest.mark.attack
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((302, {"Location": "http://127.0.0.1:1/"}, b""), "redirects to another address"),
        ((429, {}, b""), "too many requests"),
        ((500, {}, b"<script>"), "answered HTTP 500"),
        ((200, {}, b"[" * 100_000), "is not a list of servers"),
        (told({"servers": "many"}), "is not a list of servers"),
        (told({"servers": [], "metadata": {"nextCursor": "1"}}), "an empty page"),
        (told({"servers": [entry("io.example/n")] * 101}), "more than 100 entries"),
        (told({"servers": [], "more": "x" * 5_000_000}), "larger than 4 MiB"),
        (
            told({"servers": [entry("io.example/n")], "metadata": {"nextCursor": "c" * 3_000}}),
            "is not a list of servers",
        ),
    ],
)
def test_a_registry_that_lies_is_refused_with_a_reason(registry, source, answer, reason):
    registry.receiver.answers = [answer]
    after = read(source)
    assert reason in after.error
    assert after.error.count(". ") >= 1, "what it is, and what to do"
    assert "<script>" not in after.error
    assert (after.watermark, after.synced_at, after.lease_until) == (None, None, None)


@pytest.mark.attack
def test_pages_in_a_circle_end_and_what_they_held_is_read_again(registry, source):
    circle = told({"servers": [entry("io.example/a")], "metadata": {"nextCursor": "again"}})
    registry.receiver.answers = [circle, circle]
    after = read(source)
    assert "returned the same page" in after.error
    assert (names(), after.watermark) == ({"io.example/a"}, None)
    registry.entries = [entry("io.example/b")]
    assert read(source).error == ""
    assert registry.asked[-1].get("include_deleted") == "true", "whole once more"
    assert names(status="gone") == {"io.example/a"}


@pytest.mark.attack
def test_a_private_address_is_not_asked(registry, source):
    RegistrySource.objects.update(allowed_networks=[])
    assert read(source).error == (
        "The registry's IP address is private or reserved. "
        "If you trust this registry, add its network to “Allowed networks” on the page of the registry."
    )
    assert registry.receiver.requests == []


@pytest.mark.attack
def test_times_that_cannot_be_are_not_believed(registry, source):
    registry.entries = [
        entry("io.example/a", at="0001-01-01T00:00:00+14:00"),
        entry("io.example/b", at="9999-12-31T23:59:59Z"),
        entry("io.example/c", at="2900-01-01T00:00:00Z"),
        entry("io.example/d", at="2026-10-01T00:00:00Z"),
    ]
    after = read(source)
    assert (after.error, after.skipped, len(names())) == ("", 0, 4)
    assert after.watermark is not None
    assert after.watermark.isoformat() == "2026-10-01T00:00:00+00:00", (
        "else nothing newer would be asked for"
    )


@pytest.mark.attack
def test_a_reading_that_takes_too_long_ends(registry, source, monkeypatch):
    monkeypatch.setattr(sync, "MOST_SECONDS", -1.0)
    assert "could not be read within 30 minutes" in read(source).error


@pytest.mark.parametrize(
    ("lease", "reading"), [(timedelta(hours=1), True), (timedelta(hours=-1), False)]
)
def test_it_is_being_read_while_a_worker_has_it(source, lease, reading):
    RegistrySource.objects.update(
        lease_until=read_database_now() + lease, error="The registry was not read completely."
    )
    row = RegistrySource.objects.get()
    assert registry_out(row).reading is reading
    assert sources.describe_state(row) == ("reading" if reading else "failed")


def test_a_registry_that_drips_is_left(registry, source):
    gate = threading.Event()
    registry.receiver.answers = [lambda _: (gate.wait(HANG_LIMIT), told({"servers": []}))[1]]
    after = read(source, seconds=0.3)
    gate.set()
    assert "did not answer within 0.3 s" in after.error


def test_one_worker_reads_it_and_who_lost_it_writes_nothing(registry, source, monkeypatch):
    def taken_over(turn: sync.Round, raw: list[object]) -> None:
        RegistrySource.objects.update(lease_until=read_database_now() + timedelta(minutes=5))
        store(turn, raw)

    store = sync._store
    monkeypatch.setattr(sync, "_store", taken_over)
    registry.entries = [entry("io.example/late")]
    assert sync.sync_source(source_id=source.pk) is None
    assert names() == set()
    assert sync.sync_source(source_id=source.pk) is None, "it is another's now"
    assert RegistrySource.objects.get().error.startswith("The registry was not read completely")


def test_what_is_read_stays_when_somebody_saves_a_form_that_is_older(registry, source):
    registry.entries = [entry("io.example/a")]
    read(source)
    source.by_clock = True
    saved = sources.save_source(source=source, actor="user:ann")
    saved.refresh_from_db()
    assert (saved.by_clock, saved.pages, saved.error) == (True, 1, "")
    assert saved.full_at
    assert saved.watermark


@pytest.mark.parametrize("change", [{"base_url": "https://other.example"}, {"lease_until": None}])
def test_a_reading_that_lost_its_registry_at_its_end_is_no_reading(
    registry, source, monkeypatch, change
):
    def lost(turn: sync.Round, seconds: float) -> None:
        read_all(turn, seconds)
        RegistrySource.objects.update(**change)

    read_all = sync._read_all
    monkeypatch.setattr(sync, "_read_all", lost)
    registry.entries = [entry("io.example/a")]
    assert sync.sync_source(source_id=source.pk) is None
    after = RegistrySource.objects.get()
    assert (after.full_at, after.watermark, after.synced_at) == (None, None, None)


def test_kinds_are_words_that_fit(registry, source):
    packages = [
        {"registryType": "x" * 20},
        {"registryType": 3},
        {},
        *({"registryType": f"kind-{n}"} for n in range(30)),
    ]
    remotes = [{"type": "sse", "url": "https://x.example/registry_name"}]
    registry.entries = [entry("io.example/many", packages=packages, remotes=remotes)]
    assert read(source).skipped == 0
    kinds = RegistryEntry.objects.get().kinds.split()
    assert kinds[-1] == "remote"
    assert len(kinds) == 9


def installed(slug: str, version: str = PYPI["version"]) -> Server:
    row = Server.objects.create(
        slug=slug, transport="stdio", command=["x"], lifecycle=Lifecycle.ACTIVE
    )
    install = Install.objects.create(
        ecosystem="pypi",
        package="MCP_server.time",
        version=version,
        state="installed",
        lock_sha256="a" * 64,
        server=row,
        requested_by="user:ann",
        state_at=read_database_now(),
    )
    row.command = [f"{install.folder}/bin/mcp-server-time"]
    row.save()
    return row


def remote(slug: str, url: str) -> Server:
    return Server.objects.create(slug=slug, transport="http", url=url, lifecycle=Lifecycle.ACTIVE)


def subjects(kind: str) -> list[str]:
    return sorted(AuditEntry.objects.filter(kind=kind).values_list("subject", flat=True))


@pytest.mark.attack
def test_servers_of_a_deleted_entry_are_told_of_and_switched_off(registry, source):
    installed("time")
    other = installed("other", "2026.1.1")
    added = remote("added", "https://eu.example.com/mcp")
    by_hand = remote("by-hand", "https://mcp.example.com/mcp")
    ways = {
        "packages": [PYPI],
        "remotes": [
            {"type": "streamable-http", "url": "https://{tenant}.example.com/mcp"},
            {"type": "sse", "url": by_hand.url},
        ],
    }
    registry.entries = [entry("io.example/time", **ways)]
    read(source)
    RegistryEntry.objects.get().servers.add(added)
    registry.entries = [
        entry(
            "io.example/time",
            **ways,
            at="2026-11-01T00:00:00Z",
            status="deleted",
            message="malware",
        )
    ]
    read(source)
    off = set(Server.objects.filter(lifecycle=Lifecycle.DISABLED).values_list("slug", flat=True))
    assert off == {"time", "added"}, "an address alone may be anybody's word"
    assert subjects("registry.entry_deleted") == ["server:added", "server:by-hand", "server:time"]
    assert other.slug not in off
    assert all(
        "malware" in each.body for each in AuditEntry.objects.filter(kind="registry.entry_deleted")
    )
    read(source)
    assert len(subjects("registry.entry_deleted")) == 3, "once"


@pytest.mark.attack
def test_who_used_what_stood_there_before_is_switched_off_too(registry, source):
    time = installed("time")
    registry.entries = [entry("io.example/time", packages=[PYPI])]
    read(source)
    registry.entries = [entry("io.example/time", at="2026-11-01T00:00:00Z", status="deleted")]
    read(source)
    time.refresh_from_db()
    assert time.lifecycle == Lifecycle.DISABLED


@pytest.mark.attack
@pytest.mark.parametrize(
    "odd", [{}, {"packageArguments": [{"name": "--key", "isSecret": True, "isRequired": True}]}]
)
def test_packages_of_a_deleted_entry_that_wait_are_given_up(registry, source, odd):
    waiting = Install.objects.create(
        ecosystem="pypi",
        package="mcp-server-time",
        version=PYPI["version"],
        state="waiting",
        lock_sha256="b" * 64,
        state_at=read_database_now(),
        requested_by="user:ann",
    )
    registry.entries = [entry("io.example/time", packages=[PYPI | odd], status="deleted")]
    read(source)
    waiting.refresh_from_db()
    assert waiting.state == "removed"


def test_it_is_only_told_where_the_operator_wants_that(registry, source):
    time = installed("time")
    RegistrySource.objects.update(disable_deleted=False)
    registry.entries = [entry("io.example/time", packages=[PYPI], status="deleted")]
    read(source)
    time.refresh_from_db()
    assert time.lifecycle == Lifecycle.ACTIVE
    assert (
        AuditEntry.objects.filter(kind="registry.entry_deleted", subject="server:time").count() == 1
    )


@pytest.mark.attack
def test_a_document_that_changed_under_its_version_is_marked_and_told(registry, source):
    installed("time")
    registry.entries = [entry("io.example/time", packages=[PYPI])]
    read(source)
    assert RegistryEntry.objects.get().altered_at is None
    registry.entries = [
        entry(
            "io.example/time",
            packages=[PYPI | {"identifier": "mcp-server-time-evil"}],
            at="2026-11-01T00:00:00Z",
        )
    ]
    read(source)
    assert RegistryEntry.objects.get().altered_at is not None
    assert (
        AuditEntry.objects.filter(kind="registry.entry_altered", subject="server:time").count() == 1
    )


def proposed() -> list[tuple[str, str, str]]:
    rows = Install.objects.exclude(state="installed").order_by("pk")
    return [(each.server.slug, each.wanted, each.requested_by) for each in rows if each.server]


def test_a_newer_version_of_a_package_in_use_waits_for_a_person_once(registry, source):
    installed("time")
    newer = PYPI | {"version": "2026.11.2"}
    listed = entry(
        "io.example/time", "2026.11.2", packages=[newer, {"registryType": "oci", "identifier": "x"}]
    )
    registry.entries = [
        entry("io.example/time", "2026.10.19", packages=[PYPI]),
        entry("io.example/other", packages=[]),
    ]
    read(source)
    registry.entries.append(
        listed
        | {
            "_meta": {
                fake.OFFICIAL: {
                    "status": "active",
                    "publishedAt": "2026-11-02T00:00:00Z",
                    "updatedAt": "2026-11-02T00:00:00Z",
                }
            }
        }
    )
    assert read(source).error == ""
    assert proposed() == [], "nobody wants that"
    RegistrySource.objects.update(propose_versions=True, full_at=None)
    for _ in range(2):
        assert read(source).error == ""
        assert proposed() == [("time", "2026.11.2", "registry:official")]
        RegistrySource.objects.update(full_at=None)
    assert Server.objects.get(slug="time").lifecycle == Lifecycle.ACTIVE


def test_a_newer_version_of_a_bundle_in_use_waits_for_a_person_once(registry, source):
    def bundle(version: str, digit: str, where: str = "notes") -> dict[str, Any]:
        address = f"https://releases.example/{where}-{version}.mcpb"
        return {
            "registryType": "mcpb",
            "identifier": address,
            "fileSha256": digit * 64,
            "transport": {"type": "stdio"},
        }

    server = Server.objects.create(
        slug="notes", transport="stdio", command=["x"], lifecycle=Lifecycle.ACTIVE
    )
    old = bundle("1.0.0", "a")
    install = Install.objects.create(
        ecosystem="mcpb",
        package=old["identifier"],
        wanted="a" * 64,
        version="1.0.0",
        state="installed",
        lock_sha256="a" * 64,
        server=server,
        requested_by="user:ann",
        state_at=read_database_now(),
    )
    server.command = [f"{install.folder}/server"]
    server.save()
    RegistrySource.objects.update(propose_versions=True)
    other = bundle("9.0.0", "c", "other")
    registry.entries = [
        entry("io.example/notes", "1.0.0", packages=[old]),
        entry(
            "io.example/notes", "1.1.0", at="2026-11-01T00:00:00Z", packages=[bundle("1.1.0", "b")]
        ),
        entry("io.example/another", "9.0.0", packages=[other]),
    ]
    for _ in range(2):
        assert read(source).error == ""
        assert proposed() == [("notes", "b" * 64, "registry:official")]
        assert Install.objects.get(wanted="b" * 64).package == bundle("1.1.0", "b")["identifier"]
        RegistrySource.objects.update(full_at=None)


def test_older_versions_and_where_too_many_wait_are_no_proposals(registry, source):
    installed("time", "2026.10.19")
    RegistrySource.objects.update(propose_versions=True)
    registry.entries = [entry("io.example/time", "1", packages=[PYPI | {"version": "2026.9.30"}])]
    read(source)
    for number in range(20):
        Install.objects.create(
            ecosystem="npm",
            package=f"p{number}",
            state_at=read_database_now(),
            requested_by="user:ann",
        )
    registry.entries += [
        entry(
            "io.example/time",
            "2",
            at="2026-11-01T00:00:00Z",
            packages=[PYPI | {"version": "2026.12.1"}],
        )
    ]
    assert read(source).error == "", "what it lists is kept all the same"
    assert proposed() == []


def test_another_address_is_another_registry(registry, source):
    registry.entries = [entry("io.example/a")]
    source = read(source)
    source.base_url = f"{registry.url}/v0.1/"
    assert sources.save_source(source=source, actor="user:ann").watermark, (
        "the same, spelled otherwise"
    )
    source.base_url = f"{registry.url}/other"
    sources.save_source(source=source, actor="user:ann")
    assert names() == set()
    assert "answered HTTP 404" in read(source).error


@pytest.mark.parametrize(
    "url",
    ["ftp://x.example", "https://u:p@x.example", "https://x.example/?a=b", "http://[", "https://"],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigInvalid):
        sources.save_source(source=RegistrySource(slug="s", base_url=url), actor="user:ann")


def test_it_is_due_when_asked_for_and_by_the_clock(source):
    now = read_database_now()
    assert sources.list_due_sources(9) == []
    RegistrySource.objects.update(asked_at=now)
    assert sources.list_due_sources(9) == [source.pk]
    RegistrySource.objects.update(lease_until=now + timedelta(hours=1))
    assert sources.list_due_sources(9) == []
    RegistrySource.objects.update(
        asked_at=None, lease_until=None, by_clock=True, tried_at=now - timedelta(minutes=61)
    )
    assert sources.list_due_sources(9) == [source.pk]
    RegistrySource.objects.update(tried_at=now)
    assert sources.list_due_sources(9) == []


@pytest.mark.attack
def test_a_token_goes_to_its_registry_alone_and_to_no_address_that_somebody_else_enters(
    registry, source
):
    sources.save_source(source=source, actor="user:ann", token=" s3cret ")
    registry.entries = [entry("io.example/a")]
    assert read(source).error == ""
    assert registry.receiver.requests[-1].headers["authorization"] == "Bearer s3cret"
    registry.receiver.answers = [
        (302, {"Location": f"{registry.url}/elsewhere"}, b""),
        (403, {}, b""),
    ]
    assert "another address" in read(source).error
    assert "Enter a valid token" in read(source).error
    assert [each.path.partition("?")[0] for each in registry.receiver.requests] == [
        "/v0.1/servers"
    ] * 3
    for change in (
        {"base_url": "https://evil.example"},
        {"allowed_networks": [*LOOPBACK, "10.0.0.0/8"]},
    ):
        row = RegistrySource.objects.get()
        for name, value in change.items():
            setattr(row, name, value)
        with pytest.raises(ConfigInvalid, match="you cannot keep the stored token"):
            sources.save_source(source=row, actor="user:eve")
    row = RegistrySource.objects.get()
    row.allowed_networks = []
    row.by_clock = True
    row.base_url = "https://moved.example"
    assert sources.save_source(source=row, actor="user:ann", token="other").token == "other"
    assert sources.save_source(source=row, actor="user:ann", token="").sealed_token == ""
    for odd in ("Bearer x", "${cred:x}", "a\nb", "x" * 9_000):
        with pytest.raises(ConfigInvalid):
            sources.save_source(source=row, actor="user:ann", token=odd)
    row.base_url = "http://moved.example"
    with pytest.raises(ConfigInvalid, match="unencrypted over http"):
        sources.save_source(source=row, actor="user:ann", token="x")
    assert not [each for each in AuditEntry.objects.all() if "s3cret" in each.body]
    assert not hasattr(RegistrySource.history.first(), "sealed_token")
