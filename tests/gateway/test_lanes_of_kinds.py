"""Prompts and resources through the lane, in both eras: what anyone may ask is answered and
recorded as the SDK's way does."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.models import Invocation
from tests.fakes.stage import Stage, in_order, outside
from tests.gateway import test_prompts, test_resources
from tests.gateway.doors import Corpus, anonymous, doors
from tests.gateway.test_fast import FIELDS

pytestmark = pytest.mark.one_database


def of_kind(kind: str, slug: str, **more: Any) -> list[Corpus]:
    if kind == "prompt":
        name = f"{slug}__review"
        return [Corpus("prompts/get", named=name, name=name, arguments={"path": "a.py"}, **more)]
    return [
        Corpus("resources/read", named=uri, uri=uri, **more)
        for uri in ("docs://guide", "repo://a/issues/1")
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("era", ["modern", "older"])
@pytest.mark.parametrize("kind", ["prompt", "resource"])
async def test_every_odd_request_gets_the_same_answer_and_record_with_and_without_the_lane(
    stage: Stage, kind, era
):
    scene: Any = await outside((test_prompts if kind == "prompt" else test_resources).Scene, stage)

    def recorded() -> list[dict[str, Any]]:
        rows = in_order(Invocation.objects.filter(agent_slug=scene.slug, finished_at__isnull=False))
        return [
            {key: anonymous(str(value)) for key, value in row.items()}
            for row in rows.values(*FIELDS)
        ]

    async with doors(scene.slug, stage.tokens[scene.slug]) as both:
        given = {"session": await both.opened()} if era == "older" else {}
        for corpus in of_kind(kind, scene.slug, **given):
            usual = list(corpus.usual.items())
            bodies = corpus.bodies() | {
                **{
                    f"name {v!r}": corpus.params(name=v)
                    for v in (None, "", 7, ..., f"{scene.slug}__nothing")
                },
                **{
                    f"uri {v!r}": corpus.params(uri=v)
                    for v in (None, "", 7, ..., "docs://nothing", "repo://a/../b")
                },
                **{
                    f"arguments {v!r}": corpus.params(arguments=v)
                    for v in (None, [], {}, {"path": 7}, {"path": "x", "more": "x"})
                },
            }
            before = len(await outside(recorded))
            for name, content in bodies.items():
                await both.same(name, "POST", content, usual)
                made = (await outside(recorded))[before:]
                before += len(made)
                if made[: len(made) // 2] != made[len(made) // 2 :]:
                    both.differences[f"records of {name}"] = made
            plain = await both.same("plain", "POST", corpus.request(), usual)
            assert plain[0] == 200
            assert plain[1] == "application/json"
            assert "error" not in plain[2]
    assert both.differences == {}
