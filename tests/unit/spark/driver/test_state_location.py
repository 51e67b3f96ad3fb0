"""How often the start of a query reads its state location; without Spark running."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.support.locations.batch_records import one_operator
from tests.support.locations.checkpoints import run_checkpoint, small_checkpoint, started
from tests.support.stores.dict_store import CountingStore

from statelog.checkpoint.batch_record import BatchRecord
from statelog.core.task_count import TaskBounds
from statelog.errors import CheckpointError, StoreError
from statelog.spark.driver import state_location
from statelog.spark.driver.batch_times import BatchTimes
from statelog.spark.driver.restart import FirstBatch, evolved_schema
from statelog.spark.driver.state_location import LocationCleanUp, StateLocation
from statelog.spark.query.query import Query
from statelog.spark.query.settings import QuerySettings
from statelog.spark.worker.protocol import NEVER_MS
from statelog.state.kinds import StateKind
from statelog.state.schema import OperatorStateSchema, StateDescriptor

SCHEMA = OperatorStateSchema(
    "op",
    pa.schema([("k", pa.int64())]),
    (StateDescriptor("total", StateKind.VALUE, pa.schema([("n", pa.int64())])),),
)
BATCHES = 4
NEWEST = BATCHES
"""The id of their newest checkpoint, after claim 0 and the ids from 1 on."""


def record(batch_id: int) -> BatchRecord:
    return one_operator(schema=SCHEMA.to_json(), batch_id=batch_id)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    """Return the store of a location with a few micro-batches; the first is checkpoint 1."""
    store = CountingStore()
    owner = started(store)
    for batch_id in range(BATCHES):
        properties = record(batch_id).to_properties()
        small_checkpoint(owner, owner.next_checkpoint_id, properties=properties)
        owner.clean_up()
    monkeypatch.setattr(state_location, "open_location", lambda *_, **__: store)
    monkeypatch.setattr(LocationCleanUp, "_sweep", lambda _: None)  # another thread, later
    store.reads.clear()
    return store


def location(
    restore: int | str = "latest",
    schema: OperatorStateSchema = SCHEMA,
    drop_state: tuple[str, ...] = (),
) -> StateLocation:
    definition: Any = SimpleNamespace(schema=schema, max_parallelism=8, time_mode="none")
    settings = QuerySettings(checkpoint=restore, drop_state=drop_state)
    return StateLocation(Query((definition,), settings, "dict://", TaskBounds(1, 1)))


@pytest.mark.parametrize("batch_id", [BATCHES - 1, BATCHES])
@pytest.mark.parametrize("restored", [NEWEST - 1, NEWEST])
def test_a_start_reads_the_newest_checkpoint_and_the_restored_one_once(
    store: CountingStore, batch_id: int, restored: int
) -> None:
    started = location(restore="latest" if restored == NEWEST else restored)
    started.inspect("q")
    is_committed = started.take_over(FirstBatch("q", batch_id, BatchTimes()))
    assert is_committed is (batch_id < restored)
    assert started.state.base is not None
    assert restored == started.state.base.checkpoint_id
    assert started.coordinator.section(restored, b"OUTP") is None
    assert {1} == {store.reads[f"chk-{number}/_metadata"] for number in (restored, NEWEST)}


def test_a_time_to_live_counts_from_the_first_batch_that_commits_it(store: CountingStore) -> None:
    """The time of the batch, so that a repeated attempt of it sees the same state."""
    total = replace(SCHEMA.states[0], ttl_ms=1000)
    expiring = replace(SCHEMA, states=(total,))

    def expiries(started: StateLocation) -> list[int]:
        return [change.at_ms - 1000 for change in started.schemas[0].states[0].ttl_changes]

    started = location(schema=expiring)
    started.inspect("q")
    assert started.take_over(FirstBatch("q", BATCHES - 1, BatchTimes(now_ms=50)))
    runs = [started.run_id]
    for now_ms in (70, 90):  # the first one changes nothing, and is not committed
        started.begin(BatchTimes(now_ms=now_ms))
        assert [now_ms] == expiries(started)
        runs.append(started.run_id)
    assert len(runs) == len(set(runs)), "workers must not use state that is converted otherwise"

    again = location(schema=expiring)
    again.take_over(FirstBatch("q", BATCHES, BatchTimes(now_ms=90)))
    assert again.schemas == started.schemas

    assert started.state.base is not None
    started.state.advance(started.state.base, record(BATCHES), [True])
    started.begin(BatchTimes(now_ms=110))
    assert [90] == expiries(started)
    assert runs[-1] == started.run_id


RENAMED = replace(
    SCHEMA, states=(replace(SCHEMA.states[0], value_schema=pa.schema([("m", pa.int64())])),)
)


@pytest.mark.parametrize(
    ("schema", "name"), [(replace(SCHEMA, states=()), "total"), (RENAMED, "total.n")]
)
def test_a_start_that_would_drop_state_is_refused_until_it_is_named(
    store: CountingStore, schema: OperatorStateSchema, name: str
) -> None:
    text = rf"checkpoint {NEWEST} of dict://.*'op'.*not declare: '{name}'.*dropState='{name}'"
    before = dict(store.objects)
    for drop_state in ((), ("other",)):
        with pytest.raises(CheckpointError, match=text):
            location(schema=schema, drop_state=drop_state).inspect("q")
    assert store.objects == before
    store.reads.clear()
    for drop_state in ((name,), ("*",)):
        started = location(schema=schema, drop_state=drop_state)
        started.inspect("q")
        live = [state for state in started.schemas[0].states if not state.dropped]
        assert ["total" for _ in schema.states] == [state.name for state in live]
    assert 2 == store.reads[f"chk-{NEWEST}/_metadata"], "none more than without the check"


def test_a_checkpoint_without_state_drops_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CountingStore()
    owner = started(store)
    run_checkpoint(owner, owner.next_checkpoint_id, [], properties=record(0).to_properties())
    monkeypatch.setattr(state_location, "open_location", lambda *_, **__: store)
    location(schema=RENAMED).inspect("q")


@pytest.mark.parametrize(("due_ms", "is_held"), [(None, True), (70, True), (NEVER_MS, False)])
def test_timers_are_dropped_only_by_their_name(due_ms: int | None, is_held: bool) -> None:
    timers = StateDescriptor("$timers", StateKind.TIMER, pa.schema([]))
    with_timers = replace(SCHEMA, states=(*SCHEMA.states, timers))
    operator = record(0).operators[0]
    operator = msgspec.structs.replace(operator, schema=with_timers.to_json(), next_due_ms=due_ms)

    def evolved(*drop: str) -> OperatorStateSchema:
        return evolved_schema(operator, SCHEMA, now_ms=0, drop=drop, checkpoint="checkpoint 4")

    if is_held:
        with pytest.raises(CheckpointError, match=r"not declare: '\$timers'"):
            evolved()
    else:
        evolved()
    assert is_held is evolved("$timers").states[1].dropped


def with_waiting_deletions() -> StateLocation:
    """Return a location whose last commits left objects to delete."""
    started = location()
    started.take_over(FirstBatch("q", BATCHES, BatchTimes()))
    for _ in range(6):
        checkpoint_id = started.coordinator.next_checkpoint_id
        started.coordinator.trigger(checkpoint_id, [])
        started.coordinator.complete(checkpoint_id, properties={})
    return started


def test_the_end_of_a_query_deletes_what_waits_for_a_batch(store: CountingStore) -> None:
    started = with_waiting_deletions()
    before = set(store.objects)
    started.clean_up.finish()
    newest = started.coordinator.latest
    assert newest is not None
    last = newest.checkpoint_id
    retained = {f"chk-{number}/_metadata" for number in range(last - 2, last + 1)}
    needed = set(newest.referenced_paths())
    assert retained <= set(store.objects) < before
    claims = {"chk-0/_metadata", f"chk-{NEWEST + 1}/_metadata"}
    assert {path for path in store.objects if path.startswith("chk-")} == retained | needed | claims
    store.requests.clear()
    started.clean_up.finish()
    assert not store.requests, "once"


def test_a_late_store_error_is_logged(
    store: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    started = with_waiting_deletions()

    def fails(operation: str, path: str) -> str | None:
        raise StoreError("no route to host", path=path)

    store.on_request = fails
    started.clean_up.finish()
    assert "deletion at the end of the query failed: no route to host" in caplog.text
