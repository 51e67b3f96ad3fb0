"""Each metric of the changelog is really recorded, and counts what its row says."""

import datetime as dt
import threading

from tests.support.changelogs import GatedStore, ScriptedStore, appended, persisted, wait_until

from statelog import changelog as cl
from statelog.errors import StoreError
from statelog.metrics import METRICS, HistogramSnapshot

QUICK = cl.ChangelogOptions(
    upload_next_attempt_delay=dt.timedelta(0), upload_timeout=dt.timedelta(seconds=20)
)


def histogram(storage: cl.FsStateChangelogStorage, name: str) -> HistogramSnapshot:
    value = storage.metrics.snapshot()[name]
    assert isinstance(value, HistogramSnapshot)
    return value


def test_a_persist_with_one_error_is_seen_in_every_phase():
    store = ScriptedStore()
    store.put_errors = [StoreError("the close failed", path="")]
    with cl.FsStateChangelogStorage(store, options=QUICK) as storage:
        persisted(storage, b"12345")
        values = storage.metrics.snapshot()
        counts = ("upload_requests", "upload_failures", "upload_timeouts", "discarded_uploads")
        assert [2, 1, 0, 0] == [values[f"number_of_{name}"] for name in counts]
        assert (2,) == histogram(storage, "attempts_per_upload").values
        assert (2,) == histogram(storage, "total_attempts_per_upload").values
        assert (1,) == histogram(storage, "upload_batch_sizes").values
        (size,) = histogram(storage, "upload_sizes").values
        assert size > 5
        lengths = {
            name: histogram(storage, name).count
            for name, spec in METRICS.items()
            if spec.unit == "nanoseconds" and isinstance(values.get(name), HistogramSnapshot)
        }
        assert lengths == {
            "upload_latencies": 1,
            "upload_queue_waits": 1,
            "upload_thread_waits": 2,
            "encode_durations": 1,
            "put_durations": 1,
            "upload_durations": 1,
            "persist_durations": 1,
        }
        for name in ("upload_queue_size", "upload_queue_age", "in_flight_bytes"):
            assert 0 == values[name]
        (persist_ns,) = histogram(storage, "persist_durations").values
        (upload_ns,) = histogram(storage, "upload_durations").values
        assert persist_ns >= upload_ns


def eventually(storage: cl.FsStateChangelogStorage, name: str, expected: float) -> None:
    wait_until(lambda: storage.metrics.snapshot()[name] == expected, f"{name} is not {expected}")


def test_waiting_uploads_have_an_age():
    store = GatedStore()
    options = cl.ChangelogOptions(
        upload_retry_policy="none",
        batch_persist_delay=dt.timedelta(minutes=1),
        upload_max_in_flight_bytes=100,
        batch_persist_size_threshold_bytes=100,
    )
    with cl.FsStateChangelogStorage(store, options=options) as storage:
        writers = [appended(storage, bytes(50)) for _ in range(3)]
        futures = [writer.persist(0, 1) for writer in writers[:2]]
        blocked = threading.Thread(target=lambda: writers[2].persist(0, 1))
        blocked.start()
        eventually(storage, "backpressured_tasks", 1)
        values = storage.metrics.snapshot()
        assert (1, 100) == (values["upload_queue_size"], values["in_flight_bytes"])
        assert values["upload_queue_age"] > 0
        store.gate.set()
        for future in futures:
            future.result(timeout=20)
        blocked.join(20)
        assert storage.metrics.snapshot()["changelog_busy_time"] > 0


def test_an_attempt_that_a_close_prevents_is_no_failure():
    store = GatedStore()
    options = cl.ChangelogOptions(
        upload_num_threads=1, upload_retry_policy="none", batch_persist_delay=dt.timedelta(0)
    )
    storage = cl.FsStateChangelogStorage(store, options=options)
    for _ in range(2):  # the second upload waits for the only thread
        appended(storage, b"x").persist(0, 1)
    assert store.entered.wait(20)
    threading.Timer(0.05, store.gate.set).start()
    storage.close()
    assert 0 == storage.metrics.snapshot()["number_of_upload_failures"]
