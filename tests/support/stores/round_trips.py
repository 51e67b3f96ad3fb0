"""Counts how many requests to a store follow each other; requests that are sent at once count as one."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

from statelog.runtime.pool import CALLS_MAX
from statelog.store import ObjectStore

T = TypeVar("T")


class RoundTrips:
    """
    A store whose every request lasts one round trip.

    Time passes in round trips, without threads: calls that run at once begin at one time, and the next
    step begins when the last of them has ended.
    """

    endpoint = "a server that is one round trip away"

    def __init__(self, store: ObjectStore, patch: pytest.MonkeyPatch) -> None:
        self._store = store
        self.now = 0
        self.requests: list[str] = []
        patch.setattr("statelog.store.requests.together", self._together)
        patch.setattr("statelog.store.probe.together", self._together)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        return self._request(name, attribute) if callable(attribute) else attribute

    def _request(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object) -> object:
            self.now += 1
            self.requests.append(f"{self.now} {name} {arguments[0] if arguments else ''}")
            answer = call(*arguments)
            return list(answer) if isinstance(answer, Iterator) else answer

        return run

    def _together(self, calls: Sequence[Callable[[], T]], at_one_moment: bool = False) -> list[T]:
        results = []
        for first in range(0, len(calls), CALLS_MAX):
            began, ends = self.now, [self.now]
            for call in calls[first : first + CALLS_MAX]:
                self.now = began
                results.append(call())
                ends.append(self.now)
            self.now = max(ends)
        return results

    def count(self, act: Callable[[], T]) -> int:
        """Return how many round trips *act* takes."""
        began = self.now
        act()
        return self.now - began
