"""Metadata that was forged cannot lead a reader, or a clean-up, out of its location."""

import os
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.forgeries.paths import FORGED
from tests.support.locations.batch_records import one_operator
from tests.support.locations.checkpoints import record_of

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import Entries
from statelog.checkpoint.verify import verify_location
from statelog.cli.main import run
from statelog.errors import CheckpointError, CorruptionError
from statelog.format.checkpoint_metadata import write_metadata
from statelog.format.checkpoint_record import decode_record, encode_record
from statelog.model import (
    OBJECTS_PROPERTY,
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    MaterializedHandle,
)
from statelog.model.handles import checked_path, stream_handle_from_json
from statelog.store import PATHS, open_store

ALL = KeyGroupRange(0, 7)
HONEST = [
    "dstl/0b1c",
    "taskowned/x.parquet",
    "my job/dstl/ü 100%",
    "parent/7f/chk-3/_metadata",
    "a..b/...c",
    "time=12:30/x",
]


@pytest.mark.parametrize("path", FORGED)
def test_a_forged_name_is_refused(path):
    with pytest.raises(CorruptionError, match="forged or damaged"):
        checked_path(path)


@pytest.mark.parametrize("path", HONEST)
def test_an_honest_name_is_accepted(path):
    assert path == checked_path(path)


@given(st.text(alphabet="./\\%2eEfF5cCa:", max_size=20))
def test_no_name_that_is_accepted_leads_out(path):
    """Whatever a store may decode or normalize, an accepted name stays below the root."""
    try:
        checked_path(path)
    except CorruptionError:
        return
    for _ in range(6):
        assert os.path.normpath(f"/base/x/{path}").startswith("/base/x/")
        path = unquote(path).replace("\\", "/")


def forged_checkpoint(path, *, where):
    file = FileStateHandle(path, 5, 0)
    handle = ChangelogStateHandle(ALL, (HandleAndOffset(file, 0, 5, 0),), 5, 5, "h", 40)
    parts = {
        "log": {"log": (handle,)},
        "snapshot": {"materialized": (MaterializedHandle(ALL, 40, file),)},
        "listed": {"properties": {OBJECTS_PROPERTY: [path]}},
    }
    record = record_of(**parts[where], retained=(40,), parent_id=None)
    return b"".join(map(bytes, write_metadata(record, "chk-40/_metadata").buffers))


@pytest.mark.parametrize("where", ["log", "snapshot", "listed"])
@pytest.mark.parametrize("path", ["../outside/victim", "/etc/passwd", "%2e%2e/outside/victim"])
def test_forged_metadata_reads_and_deletes_nothing(path, where, tmp_path, capsys):
    victim = tmp_path / "outside" / "victim"
    victim.parent.mkdir()
    victim.write_text("mine")
    store = open_store(str(tmp_path / "location"))
    store.put(PATHS.metadata(40), forged_checkpoint(path, where=where))
    with pytest.raises(CheckpointError, match="forged or damaged") as caught:
        Entries(store).load(40)
    assert caught.value.reason == "damaged"
    (item,) = verify_location(store)
    assert "forged" in item.problem
    for arguments in (["verify"], ["gc", "--apply", "--min-age", "0s"], ["checkpoints"]):
        assert run([arguments[0], str(tmp_path / "location"), *arguments[1:]]) == 1
        assert "forged" in "".join(capsys.readouterr())
    assert victim.read_text() == "mine"


def test_handles_and_records_of_batches_and_checkpoints_are_checked_too():
    with pytest.raises(CorruptionError, match="forged"):
        stream_handle_from_json({"file": "../x", "size": 1})
    with pytest.raises(CorruptionError, match="not a stream handle"):
        stream_handle_from_json({"file": 7, "size": 1})
    stored = one_operator(schema={}).to_properties() | {"source_folders": ["../commits"]}
    with pytest.raises(CorruptionError, match="forged"):
        BatchRecord.of_properties(msgspec.to_builtins(stored), 1)
    with pytest.raises(CorruptionError, match="below 0"):
        decode_record(encode_record(record_of(retained=(-1, 40))))
