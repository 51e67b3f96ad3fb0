"""Whole objects are put with the retries, time-outs and metrics of change sets."""

import itertools
import threading
from collections.abc import Iterator

import pytest
from tests.support.changelogs import GatedStore, ScriptedStore, wait_until

from statelog import changelog as cl
from statelog.errors import ClosedError, StoreError, UploadFailedError
from statelog.options import load_options

SETTINGS = {
    "changelog.upload.next-attempt-delay": "0 ms",
    "changelog.upload.max-attempts": 4,
    "changelog.upload.timeout": "30 s",
}


def opened(store: ScriptedStore, **settings: object) -> cl.FsStateChangelogStorage:
    options = load_options(SETTINGS | settings, environ={})
    return cl.FsStateChangelogStorage.from_options(options, store, job_id="")


@pytest.fixture
def name() -> Iterator[object]:
    numbers = itertools.count()
    yield lambda: f"output/{next(numbers)}"


def test_a_put_that_fails_is_tried_again_under_another_name(name):
    store = ScriptedStore()
    store.put_errors, store.torn = [StoreError("reset", path=""), OSError("broken pipe")], True
    with opened(store) as storage:
        path = storage.objects.put(name, [b"ab", b"c"])
        assert store.objects == {path: b"abc"}, "what failed attempts wrote is deleted"
        assert path == "output/2"
        values = storage.metrics.snapshot()
        assert (values["number_of_upload_requests"], values["number_of_upload_failures"]) == (3, 2)
        assert storage.metrics.value("total_attempts_per_upload").values == (3,)
        assert storage.metrics.value("upload_sizes").values == (3,)


def test_a_put_that_always_fails_names_object_and_attempts(name):
    store = ScriptedStore()
    store.put_errors = [StoreError(f"fault {n}", path="") for n in range(9)]
    with opened(store) as storage, pytest.raises(UploadFailedError) as raised:
        storage.objects.put(name, b"abc")
    for text in ("3 bytes", "scripted://", "attempt 4", "fault 3"):
        assert text in str(raised.value)
    assert isinstance(raised.value.__cause__, StoreError)
    assert store.requests["put"] == 4


def test_a_put_that_hangs_is_overtaken_and_its_late_object_deleted(name):
    store = GatedStore()
    with opened(store, **{"changelog.upload.timeout": "20 ms"}) as storage:
        path = storage.objects.put(name, b"abc")
        assert set(store.objects) == {path}
        store.gate.set()
        wait_until(lambda: store.requests["delete"])
        assert set(store.objects) == {path}
        assert storage.metrics.value("number_of_upload_timeouts") == 1
        assert storage.metrics.value("number_of_discarded_uploads") == 1


def test_a_close_ends_a_put_that_runs(name):
    store = GatedStore()
    storage = opened(store)
    errors: list[BaseException] = []

    def put() -> None:
        try:
            storage.objects.put(name, b"abc")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    assert store.entered.wait(20)
    storage.close()
    store.gate.set()
    thread.join(20)
    assert [type(error) for error in errors] == [ClosedError]
    with pytest.raises(ClosedError):
        storage.objects.put(name, b"abc")


def test_what_a_task_gives_up_is_deleted_and_what_it_hands_over_is_kept(name):
    store = ScriptedStore()
    with opened(store) as storage:
        handed_over, given_up = (storage.objects.put(name, b"abc") for _ in range(2))
        storage.objects.hand_over([handed_over])
        storage.objects.give_up([given_up])
        storage.objects.give_up([handed_over])
    assert set(store.objects) == {handed_over}
