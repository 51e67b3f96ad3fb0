"""A live replica against the model of random histories, under faults, clean-ups and rewinds."""

import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.support.locations.histories import (
    GROUPS,
    KEYS,
    TTL_MS,
    Calm,
    History,
    Tiny,
    as_python,
    first_history,
    group_of,
    key_of,
    live_names,
    local,
    rows_of,
)

import statelog as sl
from statelog.checkpoint.retained import retained_checkpoints
from statelog.errors import (
    CheckpointError,
    ClosedError,
    CorruptionError,
    ObjectNotFoundError,
    StatelogError,
    StoreError,
    UnavailableError,
    UsageError,
)
from statelog.extensions.read import held_state
from statelog.extensions.read import replica as replica_module
from statelog.extensions.read.location_state import LocationState
from statelog.extensions.read.replica import Replica
from statelog.model import KeyGroupRange
from statelog.testing.faulty_store import FaultyStore

pytestmark = pytest.mark.campaign


@pytest.fixture(params=["in dictionaries", "in columns"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in columns":
        monkeypatch.setattr(held_state, "MemoryLimits", lambda budget: Tiny(budget))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with the present time, which is before that of every checkpoint."""
    now_ms = [0]
    monkeypatch.setattr(replica_module, "wall_clock_ms", lambda: now_ms[0])
    return now_ms


def check(
    replica: Replica, history: History, groups: KeyGroupRange | None = None,
    now_ms: int | None = None,
) -> int:  # fmt: skip
    """Compare all that the replica holds with the model of its checkpoint; return how much it is."""
    model = history.expected[replica.checkpoint]
    names = live_names(model)
    now_ms = now_ms or history.taken_at_ms[replica.checkpoint]
    assert names == [variable.name for variable in replica.variables()]
    keys = [number for number in range(KEYS) if groups is None or group_of(number) in groups]
    keys_twice = [*keys, *keys[:2]]
    versions = replica.get_all(names, [key_of(number) for number in keys_twice])
    for version in versions:
        assert (replica.checkpoint, now_ms) == (version.checkpoint_id, version.as_of_ms)
    assert [] == replica.get_all(names, [])
    assert [{}, {}] == [version.value for version in replica.get_all([], [key_of(keys[0])] * 2)]
    count = 0
    for name in names:
        rows = model.rows(name, now_ms)
        expected = {number: rows[number] for number in keys if number in rows}
        assert expected == rows_of(replica.table(name))
        for number, version in zip(keys_twice, versions, strict=True):
            value = as_python(name, rows.get(number, []))
            assert value == version.value[name] == replica.get(name, key_of(number))
            count += bool(value)
        if name == "$timers" and replica.checkpoint % 4 == 0:
            (answer,) = replica.sql("select count(*) as n from timers").to_pylist()
            assert sum(map(len, expected.values())) == answer["n"]
    return count


def following(history: History, **options: Any) -> Replica:
    """Return a replica that looks for checkpoints when it is told to."""
    return LocationState(history.store).follow(interval_s=None, **options)


def calm_history(name: str, batches: int = 1) -> Calm:
    history = Calm(name, FaultyStore())
    for _ in range(batches):
        history.micro_batch()
    return history


class FlakyStore:
    """Fails some reads of a store, once it is told to."""

    def __init__(self, store: FaultyStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self.rate = 0.0
        self.gets: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _fault(self, path: str) -> None:
        if self._rng.random() < self.rate:
            kind = self._rng.choice([StoreError, ObjectNotFoundError])
            raise kind(f"a fault at {path}", path=path)

    def get(self, path: str) -> memoryview:
        self.gets.append(path)
        self._fault(path)
        return self._store.get(path)

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        self._fault(path)
        return self._store.get_range(path, start, length)

    def list_folders(self, prefix: str = "") -> Any:
        self._fault(prefix)
        return self._store.list_folders(prefix)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("seed", range(6))
def test_a_replica_holds_the_model_of_each_checkpoint(seed: int) -> None:
    """It looks after each micro-batch or after several; the schema changes, the query goes back."""
    rng = random.Random(seed)
    history = History(f"replica {seed}", FaultyStore(), retained=3)
    history.run(2)
    replica = following(history)
    count = check(replica, history)
    for _ in range(14):
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            if rng.random() < 0.2:
                history.rewind(rng.choice(retained_checkpoints(history.store)))
            history.run(1)
        assert history.checkpoint_id == replica.refresh() == replica.checkpoint
        count += check(replica, history)
    assert count > 50
    replica.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_failed_refresh_leaves_the_checkpoint_before(seed: int) -> None:
    rng = random.Random(seed)
    history = History(f"faults {seed}", FaultyStore(), retained=3)
    history.run(2)
    store = FlakyStore(history.store, rng)  # type: ignore[arg-type]
    replica = LocationState(store).follow(interval_s=None)  # type: ignore[arg-type]
    failed = 0
    for _ in range(15):
        history.run(1)
        before = replica.checkpoint
        store.rate = 0.4
        try:
            replica.refresh()
        except StatelogError as error:
            failed += 1
            assert replica.checkpoint == before
            assert replica.status().error is error
        store.rate = 0.0
        check(replica, history)
        assert replica.refresh() == history.checkpoint_id
        assert replica.status().error is None
        check(replica, history)
    assert failed > 3


@pytest.mark.usefixtures("mode")
def test_what_expires_while_the_query_is_idle_is_left_out(clock: list[int]) -> None:
    expired = 0
    for seed in range(4):
        history = History(f"idle {seed}", FaultyStore())
        history.run(8)
        replica = following(history)
        before = check(replica, history)
        time_ms = history.taken_at_ms[replica.checkpoint]
        for now_ms in (time_ms + TTL_MS // 3, time_ms + 2 * TTL_MS):
            clock[0] = now_ms
            expired += before - check(replica, history, now_ms=now_ms)
        for name in live_names(history.expected[replica.checkpoint]):
            then = history.expected[replica.checkpoint].rows(name, time_ms)
            assert then == rows_of(replica.table(name, now_ms=time_ms))
        clock[0] = 0
    assert expired > 10


def test_a_replica_of_some_key_groups_reads_only_those() -> None:
    history = History("some groups", FaultyStore())
    history.run(3)
    groups = KeyGroupRange(2, 3)
    with following(history, key_groups=groups) as replica:
        for _ in range(8):
            history.run(1)
            replica.refresh()
            check(replica, history, groups)
        other = next(number for number in range(KEYS) if group_of(number) not in groups)
        with pytest.raises(UsageError, match="the replica contains"):
            replica.get("$timers", key_of(other))
    with pytest.raises(UsageError, match="are not all in"):
        following(history, key_groups=KeyGroupRange(0, 99))


def test_a_micro_batch_costs_its_own_changes() -> None:
    """One behind: the commit of each micro-batch is read, once, and no snapshot or older log."""
    history = calm_history("only the log")
    objects = history.store.objects  # type: ignore[attr-defined]
    store = FlakyStore(history.store, random.Random(1))  # type: ignore[arg-type]
    replica = LocationState(store).follow(interval_s=None)  # type: ignore[arg-type]
    for _ in range(12):
        before, old_objects = replica.status(), set(objects)
        store.gets.clear()
        history.micro_batch()
        replica.refresh()
        after = replica.status()
        assert set(store.gets) <= set(objects) - old_objects, "only new objects are read"
        assert len(store.gets) == len(set(store.gets)), "each once"
        assert (0, 0) == (after.snapshots - before.snapshots, after.reloads - before.reloads)
        assert after.replayed - before.replayed <= GROUPS
        check(replica, history)
    assert replica.status().checkpoints == 13
    store.gets.clear()
    assert replica.refresh() == history.checkpoint_id
    assert store.gets == [], "without a newer checkpoint nothing is read"


def test_tables_of_unchanged_key_groups_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_state, "BLOCK", 1)
    monkeypatch.setattr(held_state, "blocks", lambda part: [KeyGroupRange(kg, kg) for kg in part])
    history = calm_history("blocks")
    replica = following(history)
    replica.table("$timers")
    table = held_state.KeyedState.table
    with mock.patch.object(
        held_state.KeyedState, "table", autospec=True, side_effect=table
    ) as built:
        replica.table("$timers")
        assert built.call_args_list == [], "nothing changed"
        before = replica.checkpoint
        history.micro_batch()
        replica.refresh()
        replica.table("$timers")
    changes = LocationState(history.store).changes(before, replica.checkpoint)
    changed = set(changes.column("key_group").to_pylist())
    assert changed <= {call.args[1].start for call in built.call_args_list}
    check(replica, history)


def test_partly_replayed_state_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    history = calm_history("half")
    replica = following(history)
    history.micro_batch()
    original = held_state.KeyedState.catch_up

    def broken(self: Any, *arguments: Any) -> Any:
        original(self, *arguments)
        raise CorruptionError("found at the end")

    with monkeypatch.context() as patched:
        patched.setattr(held_state.KeyedState, "catch_up", broken)
        with pytest.raises(CorruptionError):
            replica.refresh()
        for read in (
            lambda: replica.table("$timers"),
            lambda: replica.get("$timers", key_of(5)),
            lambda: replica.sql("select 1"),
        ):
            with pytest.raises(CorruptionError, match="found at the end"):
                read()
    assert replica.refresh() == history.checkpoint_id
    check(replica, history)


def test_a_deleted_location_is_named_and_can_be_made_again(tmp_path: Path) -> None:
    history = Calm("deleted", local(tmp_path / "state"))
    history.micro_batch()
    replica = sl.open(tmp_path / "state").follow(interval_s=None)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(CheckpointError, match="no longer contains a checkpoint") as caught:
        replica.refresh()
    assert caught.value.reason == "not_found"
    assert str(tmp_path / "state") in str(caught.value)
    with pytest.raises(CheckpointError, match="no longer contains"):
        replica.wait_for(99, timeout_s=5)
    check(replica, history)  # what it holds can be read
    again = Calm("again", local(tmp_path / "state"))
    again.micro_batch()
    again.micro_batch()
    replica.refresh()
    check(replica, again)


# --- polling, waiting, closing --------------------------------------------------------------------


@pytest.fixture
def followed() -> Iterator[tuple[Calm, Replica]]:
    history = calm_history("polling")
    with LocationState(history.store).follow(interval_s=0.01) as replica:
        yield history, replica


def test_the_thread_reaches_each_checkpoint(followed: tuple[Calm, Replica]) -> None:
    history, replica = followed
    for _ in range(5):
        history.micro_batch()
        assert replica.wait_for(history.checkpoint_id, timeout_s=20) == history.checkpoint_id
        check(replica, history)
    status = replica.status()
    assert status.batch_id >= 0
    assert status.as_of_ms == history.last_ms
    assert 0 <= status.checked_s < 20
    assert 0 <= replica.lag < 20
    assert replica.wait_for(0, timeout_s=0) == history.checkpoint_id


def test_waits_are_bounded(followed: tuple[Calm, Replica]) -> None:
    _, replica = followed
    begin = time.monotonic()
    with pytest.raises(
        UnavailableError, match=r"was not committed within 0\.1 s; the newest checkpoint is 1"
    ):
        replica.wait_for(5, timeout_s=0.1)
    assert time.monotonic() - begin < 5
    for wrong in (-1, "x"):
        with pytest.raises(UsageError):
            replica.wait_for(wrong)  # type: ignore[arg-type]


def test_without_a_thread_a_wait_looks_itself() -> None:
    history = calm_history("own")
    replica = following(history)
    writer = threading.Timer(0.3, history.micro_batch)
    writer.start()
    assert replica.wait_for(1, timeout_s=20) == 1
    writer.join()


def test_close_is_idempotent_and_ends_waits(followed: tuple[Calm, Replica]) -> None:
    _, replica = followed
    ends: list[BaseException] = []

    def wait() -> None:
        try:
            replica.wait_for(99, timeout_s=30)
        except StatelogError as error:
            ends.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    replica.close()
    replica.close()
    waiting.join(60)
    assert [ClosedError] == [type(error) for error in ends]
    assert "statelog-replica" not in {thread.name for thread in threading.enumerate()}
    for use in (
        replica.refresh,
        replica.variables,
        replica.status,
        lambda: replica.checkpoint,
        lambda: replica.get("total", 1),
        lambda: replica.table("total"),
        lambda: replica.sql("select 1"),
    ):
        with pytest.raises(ClosedError):
            use()


def test_many_threads_read_whole_checkpoints(tmp_path: Path) -> None:
    """Every answer is that of one checkpoint, while the thread of the replica refreshes."""
    history = Calm("threads", local(tmp_path), retained=2)
    history.micro_batch()
    replica = LocationState(history.store).follow(interval_s=0.001)
    stop, failures, answers = threading.Event(), [], []

    def read() -> None:
        while not stop.is_set():
            try:
                answers.append(rows_of(replica.table("$timers")))
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        history.micro_batch()
        replica.wait_for(history.checkpoint_id, timeout_s=20)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert replica.status().error is None
    replica.close()
    assert len(answers) > 3
    timers = [model.rows("$timers", None) for model in history.expected.values()]
    assert len({timers.index(rows) for rows in answers}) > 1


# --- SQL ------------------------------------------------------------------------------------------


def with_all_variables(name: str) -> History:
    return first_history(name, lambda _: FaultyStore())


def test_sql_reads_the_variables_it_names() -> None:
    history = with_all_variables("sql")
    replica, tables = following(history), held_state.HeldState.tables
    totals = history.model.rows("total", history.last_ms)
    timers = history.model.rows("$timers", None)
    count = sum(map(len, timers.values()))
    join = 'with t as (select * from total) select {} from t join timers using ("key.k")'
    joined = sum(len(timers.get(key, [])) * len(rows) for key, rows in totals.items())
    for query, n, variables in (
        ('select {} from TOTAL where "key.k" >= 0', len(totals), ["total"]),
        ("select {} from timers", count, ["$timers"]),
        ('select {} from "$timers"', count, ["$timers"]),
        (join, joined, ["total", "$timers"]),
        ("select {}", 1, []),
    ):
        with mock.patch.object(
            held_state.HeldState, "tables", autospec=True, side_effect=tables
        ) as read:
            assert replica.sql(query.format("count(*) as n")).to_pylist() == [{"n": n}]
        assert [variables] == [call.kwargs["variables"] for call in read.call_args_list]


def test_wrong_sql_says_what_there_is() -> None:
    history = with_all_variables("wrong sql")
    state = LocationState(history.store)
    for run in (state.sql, state.follow(interval_s=None).sql):
        for statement, said in (
            ("select * from totals", '"counts"'),
            ("selec 1", "syntax error"),
            ("select 1; select 2", "pass one SQL statement"),
            ("", "pass one SQL statement"),
            ("select value.total from total", "names with a dot need quotes"),
        ):
            with pytest.raises(UsageError, match=said):
                run(statement)
