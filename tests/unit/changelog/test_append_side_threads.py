"""
Appends of two threads: the owner's, and those of continuations on callback threads.

Each change is in the log once, under its own key group, and every persist succeeds.
"""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait

import pyarrow as pa
import pytest
from tests.support.changelogs import ALL, handle_of

from statelog import changelog as cl


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Let the interpreter change threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def value_of(key_group: int, number: int) -> bytes:
    """Return a value that names its key group."""
    return f"{key_group}:{number}".encode()


def misplaced(changes: list[cl.StateChange]) -> list[cl.StateChange]:
    """Return the changes whose value names another key group."""
    return [change for change in changes if int(change.value.split(b":")[0]) != change.key_group]


def check_log(storage: cl.FsStateChangelogStorage, writer: cl.FsStateChangelogWriter) -> list[int]:
    """Persist twice, check that nothing is misplaced, and return the numbers in the log."""
    writer.persist(0).result(60)
    changes = list(storage.read(handle_of(writer.persist(0).result(60))))
    assert [] == misplaced(changes)
    writer._log.check_invariants()
    return sorted(int(change.value.split(b":")[1]) for change in changes)


def append_in_continuations(persists: int, appends: int) -> None:
    """Append once in each continuation of many persists, while the owner appends too."""
    total = persists * (appends + 1)
    numbers = iter(range(total))
    futures: list[Future[object]] = []
    continued = threading.Semaphore(0)
    failures: list[BaseException] = []
    with cl.FsStateChangelogStorage("memory://continuations") as storage:
        writer = storage.create_writer("op", ALL)

        def append_more(future: Future[object]) -> None:
            try:
                number = next(numbers)
                writer.append(100, value_of(100, number))
            except BaseException as error:
                failures.append(error)
            continued.release()

        start = 0
        for _ in range(persists):
            for _ in range(appends):
                writer.append(5, value_of(5, next(numbers)))
            future = writer.persist(start)
            start = int(writer.next_sequence_number())
            future.add_done_callback(append_more)
            futures.append(future)
        wait(futures, 60)
        for _ in range(persists):
            assert continued.acquire(timeout=60)
        assert [] == failures
        assert {None} == {future.exception() for future in futures}
        assert list(range(total)) == check_log(storage, writer)


@pytest.mark.usefixtures("eager_switches")
@pytest.mark.parametrize(
    ("runs", "persists", "appends"),
    [(1, 40, 50), pytest.param(100, 300, 200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_appends_in_continuations_are_logged_once_under_their_key_group(runs, persists, appends):
    for _ in range(runs):
        append_in_continuations(persists, appends)


@pytest.mark.usefixtures("eager_switches")
def test_all_kinds_of_appends_of_four_threads_are_in_the_log_once():
    failures: list[BaseException] = []
    options = cl.ChangelogOptions(preemptive_persist_threshold_bytes=500)
    with cl.FsStateChangelogStorage("memory://kinds", options=options) as storage:
        writer = storage.create_writer("op", ALL)

        def append(key_group: int) -> None:
            try:
                for number in range(key_group * 1000, key_group * 1000 + 300, 3):
                    writer.append(key_group, value_of(key_group, number))
                    values = [value_of(key_group, number + 1), value_of(key_group, number + 2)]
                    writer.append_batch([key_group] * 2, pa.array(values, pa.binary()))
                    if number % 90 == 0:
                        writer.append_meta(b"-1:" + str(-number - 1).encode())
                        writer.persist(writer.next_sequence_number())
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=append, args=(group,)) for group in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [] == failures
        values = [group * 1000 + number for group in range(4) for number in range(300)]
        first_of_three = [value for value in values if value % 1000 % 3 == 0]
        metas = sorted(-value - 1 for value in first_of_three if value % 90 == 0)
        assert [*metas, *values] == check_log(storage, writer)
