"""Whether a result is what its tool's approved definition promises. It is only remarked: the result
stays as it came.

MCP binds servers to their output schema and advises clients to check it. A call that took effect
would be none the better for a failure in place of its answer, so what does not fit is passed on,
and said wherever the call is told of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.schema.validation import list_broken_schema_paths

# of a result; the check holds the event loop, and walking so many takes a few milliseconds
_MOST_PLACES = 20_000


def check_output(definition: Mapping[str, Any], result: Mapping[str, Any] | None) -> str:
    """What to tell people of a successful result, in a sentence; empty when it keeps its promise,
    or none was made.

    It names places of the schema, nothing of the result: what this says outlives the result in the
    call's record.
    """
    schema = definition.get("outputSchema")
    if result is None or not isinstance(schema, Mapping):
        return ""
    if "structuredContent" not in result:
        return "The result lacks the structured content that the tool's approved output schema requires."
    content = result["structuredContent"]
    if _is_large(content):
        return "The result is too large to be checked against the tool's approved output schema."
    try:
        places = list_broken_schema_paths(schema, content)
    except SlipsnisseError:
        return "The result could not be checked: the tool's approved output schema is unusable, or the check would take too long."
    return (
        f"The result does not match the tool's approved output schema at {', '.join(places)}."
        if places
        else ""
    )


def _is_large(value: object) -> bool:
    found = 0
    level = [value]
    while level and found <= _MOST_PLACES:
        found += len(level)
        inner = [
            each.values() if isinstance(each, dict) else each
            for each in level
            if isinstance(each, dict | list)
        ]
        level = [part for parts in inner for part in parts]
    return found > _MOST_PLACES
