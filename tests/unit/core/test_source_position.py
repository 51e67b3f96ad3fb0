"""Positions of sources as Spark writes them."""

import json

import pytest

from statelog.checkpoint.query_files import entries_digest, read_source_logs
from statelog.core.source_position import (
    NOTHING_READ,
    log_entry,
    logged_range,
    parse_files,
    parse_offsets,
    position_of,
)
from statelog.errors import CorruptionError, IncompatibleFormatError

LINES = 4000


class Files:
    """A source's log; counts what is read."""

    def __init__(self, contents: dict[str, str]) -> None:
        self.contents = contents
        self.bytes_read = 0

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        if name not in self.contents:
            return None
        data = self.contents[name].encode()
        data = data if tail is None else data[-tail:]
        self.bytes_read += len(data)
        return data

    def names(self, folder: str) -> list[str]:
        return [name.rpartition("/")[2] for name in self.contents if name.startswith(folder)]


def entry(*batches: int, files: int = 1, timestamp: int = 5) -> str:
    lines = ["v1"]
    for batch in batches:
        for index in range(files):
            path = f"file:///in/{batch}-{index}"
            lines.append(json.dumps({"path": path, "timestamp": timestamp, "batchId": batch}))
    return "\n".join(lines)


def test_only_the_offset_of_a_file_source_names_an_entry_of_a_log():
    assert 3 == log_entry('{"logOffset":3}')
    assert -1 == log_entry(None)
    for other in ("7", '{"topic":{"0":1}}', '{"logOffset":1,"x":2}', '{"reservoirVersion":1}', "x"):
        assert log_entry(other) is None
    assert (1, 3) == logged_range('{"logOffset":1}', '{"logOffset":3}')
    assert (-1, 0) == logged_range(None, '{"logOffset":0}')
    assert logged_range('{"logOffset":3}', '{"logOffset":3}') is None
    assert logged_range("7", "8") is None


def test_positions_differ_where_any_offset_does():
    assert NOTHING_READ == position_of([]) == position_of([None, None])
    assert 3 == len({position_of(offsets) for offsets in (["1", "2"], ["1", None], ["2", "1"])})


def test_an_entry_is_the_same_wherever_it_is_kept_and_other_files_or_times_are_not():
    plain = Files({"sources/0/3": entry(3, files=2), "sources/0/4": entry(4)})
    digest = entries_digest(plain, "0", 2, 4)
    compact = Files({"sources/0/3": entry(3, files=2), "sources/0/4.compact": entry(1, 2, 3, 4)})
    assert digest == entries_digest(compact, "0", 2, 4)
    later = Files(
        {"sources/0/9.compact": entry(1), "sources/0/6.compact": entry(*range(7), files=2)}
    )
    twice = Files({f"sources/0/{batch}": entry(batch, files=2) for batch in (3, 4)})
    assert entries_digest(twice, "0", 2, 4) == entries_digest(later, "0", 2, 4)
    for other in (
        {"sources/0/3": entry(3, files=2), "sources/0/4": entry(4, timestamp=6)},
        {"sources/0/3": entry(3, files=2), "sources/0/4": entry(4, files=2)},
        {"sources/0/3": entry(3, files=2), "sources/0/4": entry(5)},
    ):
        assert digest != entries_digest(Files(other), "0", 2, 4)
    assert "" == entries_digest(Files({"sources/0/4": entry(4)}), "0", 2, 4)
    assert "" == entries_digest(Files({"sources/0/9": entry(9)}), "0", 2, 3)


def test_of_a_compact_log_only_the_end_is_read():
    log = Files({"sources/0/99.compact": entry(*range(100), files=LINES // 100)})
    whole = len(log.contents["sources/0/99.compact"])
    last = entries_digest(log, "0", 98, 99)
    assert log.bytes_read <= 64 * 1024 < whole / 3
    assert last == entries_digest(Files({"sources/0/99": entry(99, files=40)}), "0", 98, 99)
    # An entry longer than what is read first.
    long = Files({"sources/0/9.compact": entry(*range(10), files=LINES)})
    single = Files({"sources/0/9": entry(9, files=LINES)})
    assert entries_digest(single, "0", 8, 9) == entries_digest(long, "0", 8, 9)


def test_the_logs_of_all_sources_with_new_files_are_read():
    files = Files({"sources/0/0": entry(0), "sources/0/1": entry(1), "sources/2/4": entry(4)})
    before = ['{"logOffset":-1}', "5", '{"logOffset":3}']
    logs = read_source_logs(
        files, ["0", "1", "2"], before, ['{"logOffset":1}', "6", '{"logOffset":4}']
    )
    assert [(0, "0", -1, 1), (2, "2", 3, 4)] == [
        (log.source, log.folder, log.after, log.upto) for log in logs
    ]
    assert all(log.digest for log in logs)
    assert () == read_source_logs(files, ["0", "1", "2"], before, before)


def test_files_of_spark_that_are_cut_short_or_newer_are_named():
    times = b'{"batchWatermarkMs":7,"batchTimestampMs":9,"conf":{"x":"1"}}'
    plain = parse_offsets(b"v1\n" + times + b'\n{"a":1}\n-', "o")
    assert ('{"a":1}', None) == plain.offsets
    assert (7, 9, 2) == (plain.watermark_ms, plain.timestamp_ms, plain.sources)
    named = parse_offsets(b"v2\n" + times + b'\none:{"a":1}\nother:-\nthird:7', "o")
    assert (7, 9, 3, None) == (named.watermark_ms, named.timestamp_ms, named.sources, named.offsets)
    for torn in (b"v1", b'v1\n{"x":1}', b"v1\nnothing\n1", b'v1\n{"x":\n1'):
        with pytest.raises(
            CorruptionError, match="damaged query offset log offsets/3, at byte 3: truncated"
        ):
            parse_offsets(torn, "offsets/3")
    with pytest.raises(CorruptionError, match="offsets/3 is empty: a power failure"):
        parse_offsets(b"", "offsets/3")
    with pytest.raises(IncompatibleFormatError, match=r"offsets/3 has version b'v3'.*v1"):
        parse_offsets(b"v3\n{}\n1", "offsets/3")
    with pytest.raises(CorruptionError, match="damaged source log, sources/0/1"):
        parse_files(entry(1).encode()[:-3], "sources/0/1")
    with pytest.raises(CorruptionError, match="is empty"):
        parse_files(b"", "sources/0/1")
