"""Reading at the edges: beside a writer that cleans up, damage, foreign places, empty state."""

import json
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.locations.checkpoints import started
from tests.support.locations.histories import Calm, History, key_of, local, rows_of
from tests.support.locations.read_state_page import write

import statelog as sl
from statelog.checkpoint.history import read_checkpoint
from statelog.cli.main import run
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    IncompatibleFormatError,
    StatelogError,
    UsageError,
)
from statelog.extensions.read.location_state import LocationState
from statelog.format.checkpoint_record import encode_record
from statelog.format.segment import SegmentWriter
from statelog.format.trailer import MAGIC
from statelog.store import open_store
from statelog.testing.faulty_store import FaultyStore

VERBS: dict[str, list[str]] = {
    "checkpoints": [], "read": [], "get": ["$timers", "1", "key 1"],
    "get --history": ["$timers", "1", "key 1"], "diff": ["1", "2"],
    "sql": ["select count(*) as n from timers"], "read --to": ["out"], "verify": [], "gc": [],
    "verify --repair": [],
}  # fmt: skip


class Ask:
    """Calls a verb, of which only JSON may be printed, in a folder of its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, verb: str, location: Path) -> tuple[int, str]:
        """Return the status and what was printed, errors too."""
        name, *options = verb.split()
        status = run([name, str(location), *options, *VERBS.get(verb, []), "--json"])
        said = self.capsys.readouterr()
        assert "Traceback" not in said.err
        for line in said.out.splitlines():
            json.loads(line)
        return status, said.out + said.err


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    monkeypatch.chdir(tmp_path)
    return Ask(capsys)


def flip_bit(file: Path, place: int) -> bytes:
    """Damage a file, and return what it had."""
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[place] ^= 4
    file.write_bytes(damaged)
    return whole


# --- while the query writes and cleans up ---------------------------------------------------------


def test_reading_never_fails_within_the_retention(tmp_path: Path) -> None:
    """The newest checkpoint is read all the time, while the query keeps ten and deletes older ones."""
    store = local(tmp_path / "state")
    history = History("within", store, retained=10)
    history.run(3)
    stop, failures, reads = threading.Event(), [], []

    def read() -> None:
        while not stop.is_set():
            try:
                with sl.open(tmp_path / "state") as state:
                    reader = state.reader()
                    table = state.table("$timers", reader.checkpoint_id)
                    reads.append((reader.checkpoint_id, rows_of(table)))
                    state.get("$timers", key_of(1), reader.checkpoint_id)
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    history.run(25)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert len({checkpoint_id for checkpoint_id, _ in reads}) > 2
    for checkpoint_id, rows in reads:
        assert history.expected[checkpoint_id].rows("$timers", None) == rows


def test_beyond_the_retention_the_error_names_the_setting() -> None:
    history = History("beyond", FaultyStore(), retained=1)
    history.run(3)
    state = LocationState(history.store)
    reader = state.reader()
    history.run(12)  # with snapshots, so that objects of the checkpoint are deleted
    with pytest.raises(CheckpointError, match="retainedCheckpoints") as caught:
        reader.table("$timers")
    assert caught.value.reason == "subsumed"
    with pytest.raises(CheckpointError) as caught:
        state.table("$timers", 2)
    assert caught.value.reason in ("subsumed", "not_found")


# --- places that are not what is expected ---------------------------------------------------------


PLACES: dict[str, list[str] | None] = {
    "nope": None, "empty": [], "föreign dir": ["chk-x/_metadata", "readme"],
    "checkpointLocation": ["offsets/0", "commits/0", "state/0"],
}  # fmt: skip
"""The files of directories that are no locations; None if there is no directory."""


@pytest.mark.parametrize("verb", [*VERBS, "info", "report"])
@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_is_not_a_location_is_a_wrong_call(
    verb: str, name: str, tmp_path: Path, ask: Ask
) -> None:
    place, files = tmp_path / name, PLACES[name]
    if files is not None:
        place.mkdir()
    for file in files or ():
        (place / file).parent.mkdir(exist_ok=True)
        (place / file).write_text("v1")
    status, said = ask(verb, place)
    assert status == 2
    assert "does not exist" in said or "is not a state location" in said
    assert str(place) in said
    assert place.exists() is (files is not None), "nothing is created"


@pytest.mark.parametrize("verb", VERBS)
def test_a_location_without_a_checkpoint(verb: str, tmp_path: Path, ask: Ask) -> None:
    started(open_store(str(tmp_path / "new")))
    status, said = ask(verb, tmp_path / "new")
    if verb in ("checkpoints", "verify", "gc", "verify --repair"):
        assert status == 0
    else:
        assert status == 1
        assert "does not contain a checkpoint" in said or "does not exist" in said
    for use in (lambda state: state.table("total"), lambda state: state.follow()):
        with sl.open(tmp_path / "new") as state, pytest.raises(CheckpointError) as caught:
            use(state)
        assert caught.value.reason == "not_found"


def test_a_half_written_location_is_named(tmp_path: Path, ask: Ask) -> None:
    """The first commit was cut off by a crash of a file system without atomic writes."""
    place = tmp_path / "half"
    (place / "chk-1").mkdir(parents=True)
    (place / "chk-1" / "_metadata").write_bytes(b"\x01\xff\x06\x00")
    for verb in VERBS:
        status, said = ask(verb, place)
        assert status == 1
        assert "damaged" in said or "not exist" in said
        assert "chk-1/_metadata" in said or verb == "diff"


# --- damage, and newer files ----------------------------------------------------------------------


def test_damage_names_object_position_and_sound_checkpoint(tmp_path: Path, ask: Ask) -> None:
    place = tmp_path / "state"
    write(place, 6)
    newest = place / "chk-6" / "_metadata"
    # In the trailer: what a flip changes in a block of Snappy can decompress to the same bytes.
    whole = flip_bit(newest, -len(MAGIC) - 20)
    for use in (
        lambda state: state.table("total"),
        lambda state: state.get("total", "c42"),
        lambda state: state.follow(interval_s=None),
        lambda state: state.sql("select 1"),
    ):
        with sl.open(place) as state, pytest.raises(StatelogError) as caught:
            use(state)
        assert "chk-6/_metadata" in str(caught.value)
        assert "the newest older checkpoint that can be restored is 5" in str(caught.value)
        assert caught.value.usable_id == 5
    with sl.open(place) as state:
        assert state.get("total", "c42", checkpoint=5) == {"total": 60.0}
    status, said = ask("verify", place)
    assert status == 1
    summary = json.loads(said.splitlines()[-1])["summary"]
    assert (1, 5) == (summary["findings"], summary["newest_sound"])
    newest.write_bytes(whole)
    (log,) = {
        entry.handle.path
        for handle in read_checkpoint(open_store(str(place)), 6).checkpoint.log
        for entry in handle.handles_and_offsets
        if handle.checkpoint_id == 2
    }
    flip_bit(place / log, 20)
    with sl.open(place) as state, pytest.raises(CorruptionError, match=log) as damaged:
        state.table("total")
    assert isinstance(damaged.value.facts.get("offset"), int)


def test_files_of_a_newer_version_are_not_called_damaged(tmp_path: Path, ask: Ask) -> None:
    place = tmp_path / "state"
    write(place, 3)
    body = bytearray(encode_record(read_checkpoint(local(place), 3).checkpoint))
    body[0:2] = (99).to_bytes(2, "big")
    newer = b"".join(map(bytes, SegmentWriter().finish({b"CKPT": bytes(body)})))
    (place / "chk-3" / "_metadata").write_bytes(newer)
    said = "Nothing is damaged: upgrade statelog"
    for use in (lambda state: state.table("total"), lambda state: state.follow(interval_s=None)):
        with sl.open(place) as state, pytest.raises(IncompatibleFormatError, match=said):
            use(state)
    for verb in ("read", "get", "sql", "read --to", "verify", "gc", "verify --repair"):
        status, said = ask(verb, place)
        assert status == 1
        assert "upgrade statelog" in said
    assert ask("checkpoints", place)[0] == 0


# --- empty state, odd names -----------------------------------------------------------------------


def test_empty_state_is_empty_everywhere(tmp_path: Path, ask: Ask) -> None:
    place = tmp_path / "sta te ☃"
    history = Calm("empty", local(place))
    history.change = lambda codec, state, part: {}  # type: ignore[method-assign]
    history.micro_batch()
    history.micro_batch()
    with sl.open(place) as state:
        for variable in state.variables():
            table = state.table(variable.name)
            assert table.num_rows == 0
            assert table.schema.field("key.k").type == pa.int64()
        assert state.get("total", key_of(1)) is None
        assert state.changes(1, 2).num_rows == 0
        assert state.sql("select count(*) as n from total").to_pylist() == [{"n": 0}]
        with state.follow(interval_s=None) as replica:
            assert replica.get("counts", key_of(1)) == {}
            assert replica.table("total").num_rows == 0
    for verb in VERBS:
        status, _ = ask(verb, place)
        assert status == (1 if verb in ("get", "get --history") else 0), verb  # 1: no such key
    assert pq.read_table(tmp_path / "out" / "total.parquet").num_rows == 0


def test_wrong_arguments_of_follow_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 1)
    with sl.open(tmp_path) as state:
        for wrong in (0, -1, "1", True):
            with pytest.raises(UsageError):
                state.follow(interval_s=wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            state.follow(key_groups=3)  # type: ignore[arg-type]
