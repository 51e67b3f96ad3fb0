"""The coordinator takes only steps of the model: traces of the simulated owners are replayed."""

import contextlib
import logging
import os
from dataclasses import replace
from typing import Any

import pytest
from tests.campaigns.model.conformance import Event, attempt_number, check_trace, event_of
from tests.campaigns.simulation.interleaved_owners import InterleavedWorld
from tests.campaigns.simulation.owners import Rewinding, World, simulate
from tests.support.locations.sequence_entries import decoded
from tests.support.project import evidence
from tests.support.stores.dict_store import DictStore

from statelog.checkpoint import clean_up, ownership
from statelog.checkpoint.history import Entries
from statelog.checkpoint.retained import read_pins
from statelog.errors import InvariantError, ObjectNotFoundError
from statelog.format.checkpoint_record import ClaimRecord
from statelog.store.paths import parse_checkpoint_metadata

EVERY_DAY = 20


class TracedStore(DictStore):
    """Notes what happens to the entries, in order."""

    def __init__(self, world: "TracedWorld") -> None:
        super().__init__()
        self._world = world

    def _store(self, path: str, data: Any) -> None:
        super()._store(path, data)
        number = parse_checkpoint_metadata(path)
        if number is None:
            return
        entry = decoded(path, self.objects[path][0])
        event = event_of(entry)
        if not isinstance(entry, ClaimRecord):
            attempts = self._world.attempts.setdefault((entry.owner_id, number), [])
            event["attempt"] = attempt_number(attempts, entry.attempt)
        self._world.note(number=number, owner=entry.owner_id, **event)

    def list_folders(self, prefix: str = "") -> Any:
        # What is there is decided by the request, before the world goes on.
        names = super().list_folders(prefix)
        if self._world.actors and not self._world.quiet:
            self._world.note("listed", -1)
        return names

    def head(self, path: str) -> Any:
        try:
            meta = super().head(path)
        except ObjectNotFoundError:
            self._note_asked(path)
            raise
        self._note_asked(path)
        return meta

    def _note_asked(self, path: str) -> None:
        number = parse_checkpoint_metadata(path)
        if number is not None and self._world.actors and not self._world.quiet:
            self._world.note("asked", number)

    def delete(self, paths: Any) -> None:
        for path in paths:
            before = len(self.deleted)
            try:
                super().delete([path])
            finally:
                number = parse_checkpoint_metadata(path)
                if number is not None and len(self.deleted) > before and self.deleted[-1] == path:
                    self._world.note("deleted", number)


class TracedWorld(World):
    """A world with a trace."""

    def __init__(self, seed: int, *, batched: bool = False) -> None:
        super().__init__(seed, batched=batched)
        self.trace: list[Event] = []
        self.attempts: dict[tuple[str, int], list[str]] = {}

    def new_store(self) -> DictStore:
        return TracedStore(self)

    def note(self, kind: str, number: int, owner: str = "", **more: Any) -> None:
        self.trace.append(Event(kind, owner or self.actors[-1], number, **more))

    def restored(self, owner: str, epoch: int, checkpoint: Any, timeline: int) -> None:
        number = -1 if checkpoint is None else checkpoint.checkpoint_id
        self.note("restored", number, owner, timeline=timeline)

    def reported(self, owner: str, checkpoint_id: int) -> None:
        self.note("reported", checkpoint_id, owner)


class TracedRewindingWorld(TracedWorld, Rewinding):
    """A world in which owners go back to older checkpoints, with a trace."""


class TracedInterleavedWorld(TracedWorld, InterleavedWorld):
    """A world in which older owners go on between the requests of newer ones, with a trace."""

    def __init__(self, seed: int, *, batched: bool = False) -> None:
        super().__init__(seed, batched=batched)
        self.late_put_rate = 0.0  # a trace has what a live owner does


def traced(seed: int, new_world: type[TracedWorld] = TracedWorld) -> list[Event]:
    world = simulate(seed, batched=seed % 3 == 0, new_world=new_world)
    assert isinstance(world, TracedWorld)
    return world.trace


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Pytest keeps each record with its traceback; those of 20,000 worlds would take 4 GB."""
    caplog.set_level(logging.CRITICAL, "statelog")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_up, "BATCH_COMMITS", 2)


def check_seeds(seeds: range, new_world: type[TracedWorld] = TracedWorld) -> int:
    """Check the traces of worlds; return the number of events."""
    kinds: set[str] = set()
    checked = 0
    for seed in seeds:
        events = traced(seed, new_world)
        try:
            checked += check_trace(events)
        except InvariantError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        kinds |= {event.kind for event in events}
    assert kinds == {"listed", "asked", "claim", "restored", "put", "reported", "deleted"}
    return checked


@pytest.mark.parametrize(
    "new_world",
    [TracedWorld, TracedInterleavedWorld, TracedRewindingWorld],
    ids=lambda new: new.__name__,
)
def test_the_trace_of_a_simulated_world_is_a_way_through_the_model(
    new_world: type[TracedWorld],
) -> None:
    assert check_seeds(range(EVERY_DAY), new_world) > 20 * EVERY_DAY


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_traces_of_many_worlds_are_ways_through_the_model() -> None:
    count = int(os.environ.get("STATELOG_CONFORMANCE_SEEDS", "500"))
    seeds = range(EVERY_DAY, EVERY_DAY + count)
    with evidence.campaign("traces against the model", seeds=seeds, simulated=True) as record:
        for new_world in (TracedWorld, TracedRewindingWorld):
            record.counts["events of traces"] += check_seeds(seeds, new_world)
            record.counts["conforming traces"] += count
        record.runs = record.counts["conforming traces"]


@pytest.mark.parametrize("left_out", ["claim", "the look after the claim", "put"])
def test_a_trace_without_a_step_does_not_conform(left_out: str) -> None:
    events = [event for event in traced(2) if event.kind != "asked"]  # nothing was in doubt
    put = next(at for at, event in enumerate(events) if event.kind == "reported")
    kinds = [event.kind for event in events[: put + 1]]
    assert kinds == ["listed", "claim", "listed", "restored", "put", "reported"]
    at = {"claim": 1, "the look after the claim": 2, "put": 4}[left_out]
    rest = events[:at] + events[at + 1 : put + 1]
    with pytest.raises(InvariantError, match="no step of the model"):
        check_trace(rest)


def test_a_trace_with_another_parent_number_or_timeline_does_not_conform() -> None:
    events = traced(2)
    for kind, wrong in (
        ("put", {"parent": 7}),
        ("put", {"number": 2}),
        ("put", {"attempt": 1}),
        ("claim", {"number": 1}),
        ("restored", {"number": 3}),
        ("put", {"timeline": 1}),
        ("put", {"ancestors": ((0, 0),)}),
        ("claim", {"timeline": 1}),
        ("restored", {"timeline": 1}),
    ):
        at = next(at for at, event in enumerate(events) if event.kind == kind)
        changed = [*events[:at], replace(events[at], **wrong), *events[at + 1 :]]
        with pytest.raises(InvariantError):
            check_trace(changed)


def test_an_owner_that_deletes_a_claim_does_not_conform() -> None:
    events = traced(2)
    at = next(at for at, event in enumerate(events) if event.kind == "reported")
    deletes = Event("deleted", events[at].owner, 0)
    with pytest.raises(InvariantError, match="no step of the model"):
        check_trace([*events[: at + 1], deletes])


def ignores_entries_above(entries: Entries, claim: ClaimRecord) -> Any:
    return read_pins(entries.list_again().store)


def lists_nothing(entries: Entries, claim: ClaimRecord) -> Any:
    return ()


@pytest.mark.parametrize(
    ("mutant", "new_world"),
    [(lists_nothing, TracedWorld), (ignores_entries_above, TracedInterleavedWorld)],
)
def test_an_owner_that_does_not_look_does_not_conform(
    mutant: Any, new_world: type[TracedWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_pins_if_last", mutant)
    worlds: list[TracedWorld] = []

    def kept(seed: int, *, batched: bool = False) -> TracedWorld:
        worlds.append(new_world(seed, batched=batched))
        return worlds[-1]

    for seed in range(20):
        # The checks of the world may end it at the same fault; its trace goes as far as it came.
        with contextlib.suppress(AssertionError):
            simulate(seed, new_world=kept)  # type: ignore[arg-type]
    with pytest.raises(InvariantError, match="no step of the model"):
        for world in worlds:
            check_trace(world.trace)
