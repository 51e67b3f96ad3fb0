"""
A journal of the requests for claims and checkpoints that a process sends, to be checked afterwards.

Each line is appended in one write: before a request, and after its answer.  So the order of the lines of
several processes is the order in which things happened; a request took effect between its two lines, or, if
the process died, at any time after the first one or never.  `tests.campaigns.model.linearize` checks such a journal.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.campaigns.model.conformance import event_of
from tests.support.locations.sequence_entries import decoded

from statelog.checkpoint import CheckpointCoordinator
from statelog.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from statelog.format.checkpoint_record import ClaimRecord
from statelog.store import LocationStore
from statelog.store.paths import parse_checkpoint_metadata
from statelog.testing.faulty_store import joined

VARIABLE: Final = "STATELOG_TEST_REQUEST_LOG"
"""Names the journal of a process that calls `log_requests_if_asked`."""


ROOT: Final = Path(__file__).resolve().parents[3]


def append(journal: Path, entry: Mapping[str, object]) -> None:
    """Append an entry to a journal of several processes, in one write."""
    line = json.dumps(entry).encode() + b"\n"
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def noting(journal: Path) -> dict[str, str]:
    """Return what the environment of a job needs that finds the tests, and notes its requests."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {VARIABLE: str(journal), "PYTHONPATH": path}


class RequestLog:
    """Writes the journal of one process."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._process = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._numbers = itertools.count()
        self._owners: dict[str, str] = {}
        """The owner of each location that this process claimed last."""

    def _note(self, **entry: object) -> None:
        append(self._journal, entry)

    @contextmanager
    def request(
        self, location: str, events: Iterable[dict[str, Any]], on_refusal: Callable[[], str]
    ) -> Iterator[None]:
        """Note a request with its events: what happens to the entries when it takes effect."""
        name = f"{self._process}-{next(self._numbers)}"
        self._note(began=name, location=location, owner=self._owner(location), events=[*events])
        outcome = "unknown"
        try:
            yield
            outcome = "done"
        except ObjectExistsError:
            outcome = on_refusal()
            raise
        except ObjectNotFoundError:
            outcome = "done"  # the question was answered
            raise
        finally:
            self._note(ended=name, outcome=outcome)

    def happened(self, location: str, **event: object) -> None:
        """Note what the owner did without a request."""
        self._note(event=event, location=location, owner=self._owner(location))

    def new_owner(self, location: str) -> None:
        """Let the process be a new owner of a location."""
        self._owners[location] = f"{self._process}-{next(self._numbers)}"

    def _owner(self, location: str) -> str:
        return self._owners.get(location, self._process)


def outcome_of_refusal(store: LocationStore, path: str, data: Any) -> str:
    """
    Return "done" if the object that is there was written by the request that was refused.

    A client repeats a request whose answer was lost; then its own object refuses the repetition.
    """
    try:
        return "done" if bytes(store.get(path)) == bytes(joined(data)) else "refused"
    except StoreError:
        return "unknown"


def log_requests(journal: Path) -> None:
    """Note the requests of this process from now on; for a process of its own, as it is not undone."""
    log = RequestLog(journal)

    def wrapped(
        method: str, events_of: Callable[..., list[dict[str, Any]]]
    ) -> Callable[..., object]:
        usual = getattr(LocationStore, method)

        @functools.wraps(usual)
        def send(store: LocationStore, *arguments: Any, **more: Any) -> object:
            if arguments and method == "delete":
                arguments = (list(arguments[0]),)
            events = events_of(*arguments, **more)
            if not events:
                return usual(store, *arguments, **more)
            on_refusal = functools.partial(outcome_of_refusal, store, *arguments)
            with log.request(store.url, events, on_refusal):
                return usual(store, *arguments, **more)

        return send

    def of_entry(kind: str, path: str) -> list[dict[str, Any]]:
        number = parse_checkpoint_metadata(path)
        return [] if number is None else [{"kind": kind, "number": number}]

    def of_put(path: str, data: Any) -> list[dict[str, Any]]:
        number = parse_checkpoint_metadata(path)
        if number is None:
            return []
        entry = decoded(path, joined(data))
        attempt = {} if isinstance(entry, ClaimRecord) else {"attempt": entry.attempt}
        return [{"number": number, **event_of(entry), **attempt}]

    def of_listing(prefix: str = "") -> list[dict[str, Any]]:
        return [] if prefix else [{"kind": "listed", "number": -1}]

    def of_deletion(paths: Iterable[str]) -> list[dict[str, Any]]:
        return [event for path in paths for event in of_entry("deleted", path)]

    new: dict[str, Any] = {
        "put_if_absent": wrapped("put_if_absent", of_put),
        "list_folders": wrapped("list_folders", of_listing),
        "head": wrapped("head", functools.partial(of_entry, "asked")),
        "delete": wrapped("delete", of_deletion),
    }
    for name, method in new.items():
        setattr(LocationStore, name, method)
    _log_owners(log)


def _log_owners(log: RequestLog) -> None:
    """Note when a coordinator claims, restores, and reports a checkpoint."""
    claim, restore = CheckpointCoordinator.claim, CheckpointCoordinator.restore
    complete = CheckpointCoordinator.complete

    def claims(self: Any, *arguments: Any) -> int:
        log.new_owner(self._store.url)
        return claim(self, *arguments)

    def restores(self: Any, *arguments: Any, **more: Any) -> Any:
        checkpoint = restore(self, *arguments, **more)
        number = -1 if checkpoint is None else checkpoint.checkpoint_id
        if self.epoch is not None:
            timeline = self.timeline.number
            log.happened(self._store.url, kind="restored", number=number, timeline=timeline)
        return checkpoint

    def completes(self: Any, checkpoint_id: int, **more: Any) -> Any:
        checkpoint = complete(self, checkpoint_id, **more)
        log.happened(self._store.url, kind="reported", number=checkpoint_id)
        return checkpoint

    new = {"claim": claims, "restore": restores, "complete": completes}
    for name, method in new.items():
        setattr(CheckpointCoordinator, name, method)


def log_requests_if_asked() -> None:
    """Note the requests of this process if the environment names a journal."""
    journal = os.environ.get(VARIABLE)
    if journal:
        log_requests(Path(journal))
        sys.stderr.write(f"requests are noted in {journal}\n")
