"""The same contract over fsspec: local disk and memory, and what a lesser file system is told."""

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import statelog as sl
from statelog import changelog as cl
from statelog.errors import InvalidOptionsError, StoreError
from statelog.store import ObjectStore, open_store
from statelog.testing.store_contract import StoreContract

pytest.importorskip("fsspec")
FSSPEC = {"backend": "fsspec"}


class TestLocal(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return open_store(f"file://{tmp_path}/job", storage_options=FSSPEC)


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return open_store(f"memory://{uuid.uuid4()}", storage_options=FSSPEC)


def test_a_changelog_lives_in_it(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), storage_options=FSSPEC)
    with cl.FsStateChangelogStorage(store, job_id="job") as storage:
        writer = storage.create_writer("operator", sl.KeyGroupRange(0, 9))
        writer.append(3, b"value")
        handle = writer.persist(cl.SequenceNumber(0)).result(20).job_manager_owned
        assert handle is not None
        assert [(3, b"value")] == list(storage.read(handle))


def test_a_file_system_that_overwrites_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path), storage_options=FSSPEC)
    kind = type(store.file_system)
    real = kind.open
    monkeypatch.setattr(
        kind, "open", lambda self, path, mode="rb": real(self, path, mode.replace("x", "w"))
    )
    with pytest.raises(StoreError, match=r"cannot create a name exclusively \(it overwrites\)"):
        store.put_if_absent("chk-1/_metadata", b"x")
    assert [] == list(store.list())


def test_a_file_system_without_the_mode_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, path: str, mode: str = "rb") -> object:
        raise ValueError(f"unsupported mode {mode!r}")

    store = open_store(str(tmp_path), storage_options=FSSPEC)
    monkeypatch.setattr(type(store.file_system), "open", refuse)
    with pytest.raises(StoreError, match=r"unsupported mode 'xb'.*store checkpoints in a diff"):
        store.put_if_absent("chk-1/_metadata", b"x")


def test_a_scheme_that_obstore_does_not_know_goes_to_fsspec() -> None:
    assert "FsspecStore('hdfs://nowhere/x')" == repr(open_store("hdfs://nowhere/x"))
    with pytest.raises(InvalidOptionsError, match="unknown scheme 'nosuch'"):
        open_store("nosuch://x")
    with pytest.raises(InvalidOptionsError, match="backend"):
        open_store("memory://x", storage_options={"backend": "other"})


def test_without_fsspec_the_error_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['fsspec'] = None\n"
        "from statelog.store import open_store\n"
        "open_store('hdfs://host/path')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "pip install 'statelog[fsspec]'" in done.stderr
