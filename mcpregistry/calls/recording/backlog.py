"""Ends that the database has not accepted yet, and how they are written once it does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import structlog

from mcpregistry.calls.recording.late_ends import LateEnd
from mcpregistry.database_errors import fault_facts, is_passing

log = structlog.get_logger(__name__)

MOST_TOGETHER = 500  # ends in one transaction
_TRIES = 16  # transactions before the recorder looks after new calls again


class EndBacklog:
    """Belongs to the recorder's thread; other threads may only ask for its length."""

    def __init__(self) -> None:
        self._untried: list[LateEnd] = []
        # each was tried before, or is half of one that failed
        self._groups: deque[list[LateEnd]] = deque()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, ends: Iterable[LateEnd]) -> None:
        """Keep these until they are written."""
        ends = list(ends)
        self._untried += ends
        self._length += len(ends)

    def list_subjects(self) -> list[str]:
        """What the ends are about, for the log."""
        return [each.fact.subject for group in (*self._groups, self._untried) for each in group]

    def write(self, commit: Callable[[list[LateEnd]], None]) -> None:
        """Write what the database accepts now, in a limited number of transactions. The rest waits
        for the next time.

        ``commit`` writes a group in one transaction, or raises. A group that the database refuses
        for now stays whole. In any other group one end is to blame. Halving the group finds it, and
        that end alone is given up.
        """
        for _ in range(_TRIES):
            group = self._take_next_group()
            if not group:
                return
            try:
                commit(group)
            except Exception as error:  # noqa: BLE001 - whatever it is, the end that causes it must be found
                if is_passing(error):
                    self._groups.appendleft(group)
                    return
                self._divide(group, error)
            else:
                self._length -= len(group)
                log.info("recorder.caught_up", ends=len(group))

    def _take_next_group(self) -> list[LateEnd]:
        if self._groups:
            return self._groups.popleft()
        group = self._untried[:MOST_TOGETHER]
        self._untried = self._untried[MOST_TOGETHER:]
        return group

    def _divide(self, group: list[LateEnd], error: Exception) -> None:
        if len(group) == 1:
            self._length -= 1
            log.error(
                "recorder.end_lost",
                about=group[0].fact.subject,
                **fault_facts(error),
                exc_info=error,
            )
            return
        half = len(group) // 2
        self._groups.extendleft((group[half:], group[:half]))
