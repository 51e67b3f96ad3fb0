"""What the metrics record of the download cache and of local copies."""

import os
from pathlib import Path

from tests.support.changelogs import ScriptedStore, appended, handle_of, persisted, values_of

from statelog import changelog as cl


def nonzero(storage: cl.FsStateChangelogStorage, family: str) -> dict[str, object]:
    """Return the values of a family that are not zero, without the family's name and a "_"."""
    values = storage.metrics.snapshot()
    start = f"{family}_"
    return {
        name.removeprefix(start): values[name]
        for name in values
        if name.startswith(start) and values[name]
    }


def test_hits_misses_evictions_and_faults_of_the_cache(tmp_path):
    options = cl.ChangelogOptions(download_local_cache_max_bytes=3000)
    with cl.FsStateChangelogStorage(
        ScriptedStore(), options=options, job_id="job", cache_directories=[tmp_path]
    ) as storage:
        first, second, large = (
            persisted(storage, value) for value in (b"1" * 2000, b"2" * 2000, b"3" * 9000)
        )
        for _ in range(3):
            list(storage.read(first))
        counts = nonzero(storage, "download_cache")
        assert 2000 < counts.pop("bytes") < 3000
        assert {"hits": 2, "misses": 1} == counts
        list(storage.read(second))
        assert 1 == nonzero(storage, "download_cache")["evictions"]
        for _ in range(2):
            list(storage.read(large))
        assert 4 == nonzero(storage, "download_cache")["misses"], "a large file passes through"
        (file,) = tmp_path.iterdir()
        file.write_bytes(b"damaged")
        assert [b"2" * 2000] == values_of(storage.read(second))
        counts = nonzero(storage, "download_cache")
        del counts["bytes"]
        assert {"errors": 1, "misses": 5, "evictions": 1, "hits": 2} == counts


def test_hits_and_misses_of_local_copies_are_counted(tmp_path):
    config = cl.LocalRecoveryConfig((str(tmp_path),))
    with cl.FsStateChangelogStorage(
        ScriptedStore(), job_id="job", local_recovery=config
    ) as storage:
        result = appended(storage, b"value").persist(0, 1).result(60)
        handle, local = handle_of(result), result.task_local
        assert local is not None
        assert 1 == storage.metrics.snapshot()["local_copies_written"]
        assert 0 == storage.metrics.snapshot()["local_copy_errors"]
        size_bytes = local.handles_and_offsets[0].handle.size_bytes
        list(storage.read(handle, local=local))
        list(storage.read(handle))
        assert {"hits": 1, "bytes": size_bytes} == nonzero(storage, "local_recovery")
        for file in Path(config.folder_of("job")).iterdir():
            os.truncate(file, 10)
        assert [b"value"] == values_of(storage.read(handle, local=local))
        assert {"hits": 1, "bytes": size_bytes, "misses": 1} == nonzero(storage, "local_recovery")
        assert 1 == storage.metrics.snapshot()["local_copy_errors"]


def test_a_copy_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    config = cl.LocalRecoveryConfig((str(tmp_path / "file"),))
    with cl.FsStateChangelogStorage(
        ScriptedStore(), job_id="job", local_recovery=config
    ) as storage:
        persisted(storage, b"value")
        assert 0 == storage.metrics.snapshot()["local_copies_written"]
        assert 1 == storage.metrics.snapshot()["local_copy_errors"]
