"""A recording as a file that must be read for ever."""

from pathlib import Path

import pytest

from statelog.errors import CorruptionError, IncompatibleFormatError
from statelog.extensions.recordings.format import decode_file, encode_file, encode_recording
from statelog.extensions.recordings.step import steps_of

FILE = Path(__file__).parent / "vectors" / "recording_v2.bin"


def test_a_recording_is_read_as_it_was_written() -> None:
    (task,) = decode_file(FILE.read_bytes(), where="golden")
    assert ("totals", 0) == (task.operator_id, task.operator)
    assert (1, 1) == (task.checkpoint_id, task.batch_id)
    assert ("processingtime", 1200, 1100) == (task.time_mode, task.now_ms, task.watermark_ms)
    assert ("rows", (1,), 1, {}) == (
        task.row_format, task.key_positions, task.first_input, task.dropped,
    )  # fmt: skip
    first, second = steps_of(task)
    assert (("k1",), ("k2",)) == (first.key, second.key)
    assert ["total", "short", "big", "items", "recent", "counts", "seen", "$timers"] == [
        state.name for state in first.schema.states
    ]
    rows = first.input.select(["k", "op", "n"]).to_pylist()
    assert [{"k": "k1", "op": "append", "n": 7}, {"k": "k1", "op": "yield", "n": 0}] == rows
    assert [("handleInputRows", -1, 1), ("handleExpiredTimer", 1100, 1)] == [
        (call.method, call.timer_ms, call.output_rows) for call in first.calls
    ]
    output = [("k1", "row", 24), ("k1", "timer 1100", 1124)]
    assert output == [tuple(row.values()) for row in first.output.to_pylist()]
    assert {"n": 5, "text": "t5"} == first.before.column("total")[0].as_py()
    assert [{"n": 7}, {"n": 1100}] == first.after.column("items")[0].as_py()  # type: ignore[union-attr]
    assert [1100] == first.before.column("$timers")[0].as_py()
    assert second.failure is None


def test_a_written_recording_is_read_back() -> None:
    (task,) = decode_file(FILE.read_bytes())
    assert [task] == decode_file(encode_file([encode_recording(task)]))


@pytest.mark.parametrize("version", [1, 3])
def test_a_recording_of_another_version_is_no_damage(version: int) -> None:
    data = bytearray(FILE.read_bytes())
    data[4] = version
    with pytest.raises(
        IncompatibleFormatError, match=rf"has version {version} .* reads version 2 .* wrote it"
    ):
        decode_file(data, where="golden")


@pytest.mark.parametrize("at", [0, 9, 13, 40, -1])
def test_damage_is_reported(at: int) -> None:
    data = bytearray(FILE.read_bytes())
    data[at] ^= 0xFF
    with pytest.raises(CorruptionError, match="damaged recording golden"):
        decode_file(data, where="golden")


@pytest.mark.parametrize("length", [0, 3, 15, 16, 100])
def test_a_part_of_a_file_is_damaged(length: int) -> None:
    with pytest.raises(CorruptionError):
        decode_file(FILE.read_bytes()[:length], where="golden")
