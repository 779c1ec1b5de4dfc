"""A whole site whose PostgreSQL refuses to write under load: callers are refused, and it works
again by itself.

Prints how long that takes after the refusal has ended.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fault.load import Load, disagreements, served
from tests.fault.refusals import POSTGRES, as_plain_role, let_go
from tests.fault.test_database_errors import tidy
from tests.waiting import eventually

pytestmark = [pytest.mark.fault, pytest.mark.e2e, pytest.mark.postgres_only, pytest.mark.exhaustive]


@pytest.mark.usefixtures("live_db")
@pytest.mark.parametrize("kind", POSTGRES)
def test_site_works_again_after_its_database_refused(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused() -> float:
        async with load.running():
            await load.until_told(200)
            with ExitStack() as refusal:
                await asyncio.to_thread(refusal.enter_context, POSTGRES[kind]())
                await load.until_told(503)
                await asyncio.to_thread(refusal.close)
            ended = time.monotonic()
            await load.until_told(200)
            took = time.monotonic() - ended
            await load.until_ready(200)
        return took

    with served(tmp_path / "journal") as (site, token), ExitStack() as role:
        let_go()
        if kind == "revoked privileges":
            role.enter_context(as_plain_role())
        load = Load(site, token)
        took = asyncio.run(refused())
        # what ended meanwhile is written soon
        eventually(lambda: not disagreements(load, tmp_path / "journal"))
    with capsys.disabled():
        print(f"\n{kind}: works again after {took:.2f} s")
    let_go()
    assert {body["code"] for _, status, body in load.told if status == 503} <= {
        "NOT_RECORDED",
        "BUSY",
        "UNAVAILABLE",
    }
    tidy()
    let_go()
