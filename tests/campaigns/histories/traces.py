"""
Traces of the courses: what happens to the claims and checkpoints of a location, and by which owner.

A trace begins with what is stored.  It ends where something else than a driver changes the entries: a
fork, a backup that is restored, a location that is made again.  The next trace begins there.
`tests.campaigns.model.conformance` checks each of them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from tests.campaigns.model.conformance import Event, attempt_number, check_trace, event_of
from tests.campaigns.model.history import CHECKPOINT, CLAIM, Content
from tests.support.locations.sequence_entries import decoded

from statelog.checkpoint import CheckpointCoordinator
from statelog.checkpoint.history import present_ids
from statelog.errors import ObjectNotFoundError
from statelog.format.checkpoint_record import ClaimRecord
from statelog.store import PATHS, LocationStore
from statelog.store.location_store import parse_parent_path
from statelog.store.paths import parse_checkpoint_metadata
from statelog.testing.faulty_store import joined

_NOBODY = -1
"""The owner of entries that were stored before a trace began."""


@dataclass
class Trace:
    """
    The events of one location, while nothing but drivers changes its entries.

    Args:
        stored: The entries at its begin, by number.
    """

    stored: Mapping[int, Content] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    attempts: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    is_left_out: bool = False


@dataclass
class _Owner:
    name: str
    url: str
    trace: Trace
    restored: tuple[int, int] | None = None
    """The base that it chose last, and the timeline; an event once it commits."""


class Traces:
    """Notes the requests of all coordinators of this process while `recorded`."""

    def __init__(self) -> None:
        self.ended: list[Trace] = []
        self._current: dict[str, Trace] = {}
        self._owners: dict[int, _Owner] = {}
        self._coordinators: list[CheckpointCoordinator] = []
        """Those of `_owners`, so that no id is used twice."""
        self._acting: list[_Owner] = []

    def end(self, url: str) -> None:
        """End the trace of a location; what its drivers do from now on is not noted."""
        trace = self._current.pop(url, None)
        if trace is not None and trace.events and not trace.is_left_out:
            self.ended.append(trace)

    def leave_out(self, url: str) -> None:
        """End the trace of a location; what happens up to the next one is no part of any."""
        self.end(url)
        self._current[url] = Trace(is_left_out=True)

    def begin(self, store: LocationStore) -> None:
        """End the trace of a location and begin with what is stored."""
        self.end(store.url)
        stored: dict[int, Content] = {}
        for number in present_ids(store):
            path = PATHS.metadata(number)
            stored[number] = _content(decoded(path, bytes(store.get(path))))
        self._current[store.url] = Trace(stored)

    def check(self) -> tuple[int, int]:
        """Check all traces against the model; return how many there are, and how many events."""
        for url in list(self._current):
            self.end(url)
        traces = self.ended
        return len(traces), sum(check_trace(trace.events, trace.stored) for trace in traces)

    # --- notes ----------------------------------------------------------------------------------

    def _note(self, kind: str, number: int, **more: Any) -> None:
        """Note an event of the owner that acts, unless it is one of a location that was replaced."""
        owner = self._acting[-1]
        if self._current.get(owner.url) is owner.trace:
            owner.trace.events.append(Event(kind, owner.name, number, **more))

    @contextlib.contextmanager
    def _acts(self, coordinator: Any, *, is_new: bool = False) -> Iterator[_Owner]:
        if is_new or id(coordinator) not in self._owners:
            url = coordinator._store.url
            trace = self._current.setdefault(url, Trace())
            self._coordinators.append(coordinator)
            name = f"owner {len(self._coordinators)}"
            self._owners[id(coordinator)] = _Owner(name, url, trace)
        self._acting.append(self._owners[id(coordinator)])
        try:
            yield self._acting[-1]
        finally:
            self._acting.pop()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Note what happens in the block."""
        requests = ("put_if_absent", "list_folders", "head", "delete")
        methods = {name: self._acting_in(name) for name in ("restore", "complete", "clean_up")}
        methods["claim"] = self._acting_in("claim", is_new=True)
        with (
            mock.patch.multiple(LocationStore, **{name: self._sent(name) for name in requests}),
            mock.patch.multiple(CheckpointCoordinator, **methods),
        ):
            yield

    def _sent(self, method: str) -> Callable[..., Any]:
        usual = getattr(LocationStore, method)
        note = getattr(self, f"_{method}")

        @functools.wraps(usual)
        def send(store: LocationStore, *arguments: Any, **more: Any) -> Any:
            if not self._acting:
                return usual(store, *arguments, **more)
            return note(functools.partial(usual, store), *arguments, **more)

        return send

    def _put_if_absent(self, put: Callable[..., Any], path: str, data: Any) -> Any:
        result = put(path, data)
        number = parse_checkpoint_metadata(path)
        if number is None:
            return result
        entry = decoded(path, joined(data))
        event = event_of(entry)
        owner = self._acting[-1]
        if not isinstance(entry, ClaimRecord):
            if owner.restored is not None:
                number_of_base, timeline = owner.restored
                self._note("restored", number_of_base, timeline=timeline)
                owner.restored = None
            attempts = owner.trace.attempts.setdefault((owner.name, number), [])
            event["attempt"] = attempt_number(attempts, entry.attempt)
        self._note(number=number, **event)
        return result

    def _list_folders(self, listing: Callable[..., Any], prefix: str = "") -> Any:
        if not prefix:
            self._note("listed", -1)
        return listing(prefix)

    def _head(self, head: Callable[..., Any], path: str) -> Any:
        number = parse_checkpoint_metadata(path)
        if number is not None:
            self._note("asked", number)
        return head(path)

    def _delete(self, delete: Callable[..., Any], paths: Any) -> Any:
        paths = list(paths)
        # A fork names objects of its parent, too; they are not deleted.
        numbers = {
            path: parse_checkpoint_metadata(path)
            for path in paths
            if parse_parent_path(path) is None
        }
        store = delete.args[0]  # type: ignore[attr-defined]
        stored = [n for path, n in numbers.items() if n is not None and _is_stored(store, path)]
        result = delete(paths)
        for number in stored:
            self._note("deleted", number)
        return result

    # --- coordinators ---------------------------------------------------------------------------

    def _acting_in(self, method: str, *, is_new: bool = False) -> Callable[..., Any]:
        """Return a method of coordinators that notes who acts, and what it did in the end."""
        usual = getattr(CheckpointCoordinator, method)

        def act(coordinator: Any, *arguments: Any, **more: Any) -> Any:
            with self._acts(coordinator, is_new=is_new) as owner:
                result = usual(coordinator, *arguments, **more)
                if method == "restore":
                    number = -1 if result is None else result.checkpoint_id
                    owner.restored = number, coordinator.timeline.number
                elif method == "complete":
                    self._note("reported", arguments[0])
            return result

        return act


def _is_stored(store: LocationStore, path: str) -> bool:
    try:
        store.get(path)
    except ObjectNotFoundError:
        return False
    return True


def _content(entry: Any) -> Content:
    """Return an entry as the model has it."""
    event = event_of(entry)
    if event["kind"] == "claim":
        return CLAIM, _NOBODY, event["timeline"]
    return CHECKPOINT, _NOBODY, 0, event["parent"], event["timeline"], event["ancestors"]
