"""Small sets are encoded by the writer's thread, large ones by the uploader; the bytes are one."""

import pytest
from tests.unit.changelog.helpers import ALL, ScriptedStore, columns

from statelog.changelog import upload_task
from statelog.changelog.storage import FsStateChangelogStorage
from statelog.format import change_set
from statelog.model import SequenceNumber


def written(early_max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, list[str]]:
    calls: list[str] = []
    real = change_set.encode_change_set
    monkeypatch.setattr(upload_task, "_EARLY_MAX_BYTES", early_max_bytes)
    monkeypatch.setattr(
        upload_task, "encode_change_set", lambda each: (calls.append("encode"), real(each))[1]
    )
    store = ScriptedStore()
    with FsStateChangelogStorage(store, job_id="job") as storage:
        writer = storage.create_writer("operator", ALL)
        for number in range(3):
            writer.append_batch(*columns([(number * 7 % 5, b"x" * number), (1, b"y")]))
            writer.next_sequence_number()
        before = len(calls)
        future = writer.persist(SequenceNumber(0), 1)
        future.result()
        assert before == 0
        writer.confirm(SequenceNumber(0), SequenceNumber(3), 1)
    (content,) = store.objects.values()
    return content, calls


def test_who_encodes_does_not_show_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    early, early_calls = written(10**6, monkeypatch)
    late, late_calls = written(-1, monkeypatch)
    assert early == late
    assert len(early_calls) == len(late_calls) == 3


def test_an_attempt_after_a_failure_takes_the_bytes_that_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    real = upload_task.encode_change_set
    monkeypatch.setattr(
        upload_task, "encode_change_set", lambda each: (calls.append(1), real(each))[1]
    )
    store = ScriptedStore()
    store.put_errors = [OSError("no"), OSError("no")]
    with FsStateChangelogStorage(store, job_id="job") as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        writer.persist(SequenceNumber(0), 1).result()
    assert [1] == calls
    assert 3 == store.requests["put"]
