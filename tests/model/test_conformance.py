"""The coordinator takes only steps of the model: traces of the simulated owners are replayed."""

import json
import os
from dataclasses import replace
from typing import Any

import pytest
from tests import evidence
from tests.model.conformance import Conformance, Event
from tests.unit.checkpoint.dict_store import DictStore
from tests.unit.checkpoint.test_simulation import World, simulate

from statelog.checkpoint import batched_clean_up, coordinator
from statelog.errors import InvariantError
from statelog.format.checkpoint_metadata import CHECKPOINT_TAG, decode_record
from statelog.format.segment import parse_segment
from statelog.store.paths import parse_checkpoint_metadata, parse_owner

EVERY_DAY = 20


class TracedStore(DictStore):
    """Notes what happens to claims and checkpoints, in order."""

    def __init__(self, world: "TracedWorld") -> None:
        super().__init__()
        self._world = world

    def _store(self, path: str, data: Any) -> None:
        super()._store(path, data)
        epoch, number = parse_owner(path), parse_checkpoint_metadata(path)
        if epoch is not None:
            self._world.note("claim", epoch - 1, json.loads(self.objects[path][0])["owner_id"])
        elif number is not None:
            self._put(path, number)

    def _put(self, path: str, number: int) -> None:
        trailer = parse_segment(memoryview(self.objects[path][0])).trailer
        record = decode_record(trailer.sections[CHECKPOINT_TAG], where=path)
        stored = record.checkpoint
        attempts = self._world.attempts.setdefault((stored.owner_id, number), [])
        if record.attempt not in attempts:
            attempts.append(record.attempt)
        self._world.note(
            "put",
            number,
            stored.owner_id,
            epoch=stored.epoch - 1,
            parent=-1 if stored.parent_id is None else stored.parent_id,
            attempt=attempts.index(record.attempt),
        )

    def head(self, path: str) -> Any:
        epoch = parse_owner(path)
        if epoch is None:
            return super().head(path)
        # Whether the claim is there is decided by the request, before the world goes on.
        exists: list[bool] = []

        def look() -> Any:
            exists.append(path in self.objects)
            self._world.note("look", epoch - 1, exists=exists[0])
            return self.objects_info(path)

        return self._request("head", path, look)

    def objects_info(self, path: str) -> Any:
        self._read(path)
        return path

    def list_folders(self, prefix: str = "") -> Any:
        names = super().list_folders(prefix)
        self._world.note_listing()
        return names

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
        store = TracedStore(self)
        store.on_request, store.while_in_flight = self.store.on_request, self.store.while_in_flight
        self.store = store
        self.trace: list[Event | None] = []
        self.listings: dict[str, int] = {}
        self.attempts: dict[tuple[str, int], list[str]] = {}

    def note(self, kind: str, number: int, owner: str = "", **more: Any) -> None:
        self.trace.append(Event(kind, owner or self.actors[-1], number, **more))

    def note_listing(self) -> None:
        """Keep a place in the trace: a restore decides by the listing with which it begins."""
        if self.actors and not self.quiet:
            self.listings[self.actors[-1]] = len(self.trace)
            self.trace.append(None)

    def restored(self, owner: str, epoch: int, found: Any) -> None:
        number = -1 if found is None else found.checkpoint_id
        is_overtaken = f"owner/{epoch + 1}" in self.store.objects
        event = Event("restored", owner, number, epoch=epoch - 1, exists=is_overtaken)
        self.trace[self.listings[owner]] = event

    def reported(self, owner: str, checkpoint_id: int) -> None:
        self.note("reported", checkpoint_id)

    def events(self) -> list[Event]:
        return [event for event in self.trace if event is not None]


def traced(seed: int) -> list[Event]:
    world = simulate(seed, batched=seed % 3 == 0, new_world=TracedWorld)
    assert isinstance(world, TracedWorld)
    return world.events()


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_clean_up, "BATCH_COMMITS", 2)


def check_seeds(seeds: range) -> int:
    """Check the traces of worlds; return the number of events."""
    kinds: set[str] = set()
    checked = 0
    for seed in seeds:
        events = traced(seed)
        try:
            checked += Conformance(events).run()
        except InvariantError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        kinds |= {event.kind for event in events}
    assert kinds == {"claim", "restored", "look", "put", "reported", "deleted"}
    return checked


def test_the_trace_of_a_simulated_world_is_a_way_through_the_model() -> None:
    assert check_seeds(range(EVERY_DAY)) > 20 * EVERY_DAY


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_traces_of_many_worlds_are_ways_through_the_model() -> None:
    count = int(os.environ.get("STATELOG_CONFORMANCE_SEEDS", "500"))
    seeds = range(EVERY_DAY, EVERY_DAY + count)
    with evidence.campaign("traces against the model", seeds=seeds, simulated=True) as record:
        record.counts["events of traces"] += check_seeds(seeds)
        record.runs = record.counts["conforming traces"] = count


@pytest.mark.parametrize(
    "left_out", ["the look before", "the look after", "the claim"], ids=lambda text: text
)
def test_a_trace_without_a_step_does_not_conform(left_out: str) -> None:
    events = traced(2)
    put = next(at for at, event in enumerate(events) if event.kind == "reported")
    kinds = [event.kind for event in events[: put + 1]]
    assert kinds[-4:] == ["look", "put", "look", "reported"]
    at = {"the look before": put - 3, "the look after": put - 1, "the claim": 0}[left_out]
    with pytest.raises(InvariantError, match="no step of the model"):
        Conformance(events[:at] + events[at + 1 : put + 1]).run()


def test_a_trace_with_another_parent_or_outcome_does_not_conform() -> None:
    events = traced(2)
    put = next(at for at, event in enumerate(events) if event.kind == "put")
    look = next(at for at, event in enumerate(events) if event.kind == "look")
    for at, wrong in ((put, {"parent": 7}), (put, {"epoch": 3}), (look, {"exists": True})):
        changed = [*events[:at], replace(events[at], **wrong), *events[at + 1 :]]
        with pytest.raises(InvariantError):
            Conformance(changed).run()


def test_a_coordinator_that_does_not_look_does_not_conform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "is_taken_over", lambda store, paths, epoch: False)
    with pytest.raises((InvariantError, AssertionError)):
        Conformance(traced(4)).run()
