"""What the download cache and the local copies were worth, as the metrics tell it."""

import datetime as dt
import os
from pathlib import Path

from tests.support.changelogs import ALL, ScriptedStore, handle_of, values_of, wait_until

from statelog import changelog as cl


def nonzero(storage: cl.FsStateChangelogStorage, family: str) -> dict[str, object]:
    """Return the values of one family that are not zero, without the family's name and a "_"."""
    values = storage.metrics.snapshot().items()
    start = f"{family}_"
    return {
        name.removeprefix(start): value
        for name, value in values
        if name.startswith(start) and value
    }


def filled(storage: cl.FsStateChangelogStorage, *values: bytes) -> list[cl.ChangelogStateHandle]:
    """Persist each value as a file of its own."""
    writer = storage.create_writer("operator", ALL)
    handles = []
    for value in values:
        start = writer.next_sequence_number()
        writer.append(1, value)
        handles.append(handle_of(writer.persist(start).result(60)))
    return handles


def test_hits_misses_evictions_and_faults_of_the_cache(tmp_path: Path) -> None:
    options = cl.ChangelogOptions(download_local_cache_max_bytes=3000)
    with cl.FsStateChangelogStorage(
        ScriptedStore(), options=options, job_id="job", cache_directories=[tmp_path]
    ) as storage:
        first, second, large = filled(storage, b"1" * 2000, b"2" * 2000, b"3" * 9000)
        for _ in range(3):
            list(storage.read(first))
        assert {"hits": 2, "misses": 1} == {
            key: value
            for key, value in nonzero(storage, "download_cache").items()
            if key != "bytes"
        }
        assert 2000 < nonzero(storage, "download_cache")["bytes"] < 3000
        list(storage.read(second))
        assert 1 == nonzero(storage, "download_cache")["evictions"]
        for _ in range(2):
            list(storage.read(large))
        assert 4 == nonzero(storage, "download_cache")["misses"], "a large file passes through"
        (file,) = tmp_path.iterdir()
        file.write_bytes(b"damaged")
        assert [b"2" * 2000] == values_of(storage.read(second))
        assert {"errors": 1, "misses": 5, "evictions": 1, "hits": 2} == {
            key: value
            for key, value in nonzero(storage, "download_cache").items()
            if key != "bytes"
        }


def test_unused_files_are_removed_and_counted(tmp_path: Path) -> None:
    options = cl.ChangelogOptions(download_local_cache_idle_timeout=dt.timedelta(milliseconds=30))
    with cl.FsStateChangelogStorage(
        ScriptedStore(), options=options, job_id="job", cache_directories=[tmp_path]
    ) as storage:
        (handle,) = filled(storage, b"1")
        list(storage.read(handle))
        wait_until(lambda: "idle_removals" in nonzero(storage, "download_cache"))
        assert 0 == storage.metrics.snapshot()["download_cache_bytes"]


def test_hits_and_misses_of_local_copies_are_counted(tmp_path: Path) -> None:
    config = cl.LocalRecoveryConfig((str(tmp_path),))
    with cl.FsStateChangelogStorage(
        ScriptedStore(), job_id="job", local_recovery=config
    ) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"value")
        result = writer.persist(cl.SequenceNumber(0), 1).result(60)
        handle, local = handle_of(result), result.task_local
        assert local is not None
        assert 1 == storage.metrics.snapshot()["local_copies_written"]
        assert 0 == storage.metrics.snapshot()["local_copy_errors"]
        list(storage.read(handle, local=local))
        size_bytes = local.handles_and_offsets[0].handle.size_bytes
        assert {"hits": 1, "bytes": size_bytes} == nonzero(storage, "local_recovery")
        list(storage.read(handle))
        assert {"hits": 1, "bytes": size_bytes} == nonzero(storage, "local_recovery")
        for file in Path(config.folder_of("job")).iterdir():
            os.truncate(file, 10)
        assert [b"value"] == values_of(storage.read(handle, local=local))
        assert {"hits": 1, "bytes": size_bytes, "misses": 1} == nonzero(storage, "local_recovery")
        assert 1 == storage.metrics.snapshot()["local_copy_errors"]


def test_a_copy_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    config = cl.LocalRecoveryConfig((str(tmp_path / "file"),))
    with cl.FsStateChangelogStorage(
        ScriptedStore(), job_id="job", local_recovery=config
    ) as storage:
        filled(storage, b"value")
        assert 0 == storage.metrics.snapshot()["local_copies_written"]
        assert 1 == storage.metrics.snapshot()["local_copy_errors"]
