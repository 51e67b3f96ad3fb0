"""A snapshot is a plain Parquet file: DuckDB, which shares no code with the writer, reads it."""

import datetime as dt
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from statelog.model import KeyGroupRange
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import read_snapshot, write_snapshot
from statelog.state.heap import CLOCK_STEP_MS, KeyGroupState
from statelog.state.kinds import StateKind
from statelog.state.schema import TIMERS_NAME, OperatorStateSchema, StateDescriptor

NOW = 1_000_000
LATER = NOW + 1_000
SCHEMA = OperatorStateSchema(
    "op",
    pa.schema([("customer", pa.string()), ("day", pa.date32())]),
    (
        StateDescriptor(
            "total", StateKind.VALUE, pa.schema([("sum", pa.float64()), ("n", pa.int64())])
        ),
        StateDescriptor("seen", StateKind.LIST, pa.schema([("item", pa.string())]), None, 500),
        StateDescriptor(
            "by",
            StateKind.MAP,
            pa.schema([("times", pa.int64())]),
            pa.schema([("item", pa.string())]),
        ),
        StateDescriptor(TIMERS_NAME, StateKind.TIMER, pa.schema([("time", pa.int64())])),
    ),
)
DAY = dt.date(2011, 12, 9)
ANN, BOB, EVE = (("ann", DAY), ("bob", DAY), ("eve", DAY))


@pytest.fixture
def codec() -> OperatorCodec:
    return OperatorCodec(SCHEMA)


@pytest.fixture
def data(codec: OperatorCodec) -> bytes:
    groups = {key_group: KeyGroupState(codec.kinds, 3) for key_group in range(4)}
    total, seen, by, timers = groups[1].tables
    total[ANN] = (1.5, 2)
    seen[ANN] = [(LATER, ("tea",)), (NOW - CLOCK_STEP_MS - 1, ("gone",))]
    by[ANN] = {("tea",): (7,), ("cup",): (1,)}
    timers[ANN] = (10, 20)
    groups[2].tables[0][BOB] = (9.0, 1)
    groups[3].tables[0][EVE] = (5.0, 5)
    overlay: list[dict[Any, Any]] = [{BOB: (10.0, 2)}, {}, {}, {}]
    return write_snapshot(codec, groups, {2: overlay}, KeyGroupRange(1, 2), now_ms=NOW)


def test_duckdb_reads_every_kind_of_state(data, tmp_path):
    file = tmp_path / "snapshot.parquet"
    file.write_bytes(data)
    with duckdb.connect() as connection:
        rows = connection.execute(
            'SELECT key_group, "key.customer", "key.day", total.sum, total.n, '
            "[e.item FOR e IN seen], [e.expires_at_ms FOR e IN seen], "
            '[e.key.item FOR e IN "by"], [e.value.times FOR e IN "by"], '
            f'"{TIMERS_NAME}" FROM read_parquet(?) ORDER BY ALL',
            [str(file)],
        ).fetchall()
        (total,) = connection.execute(
            "SELECT sum(total.sum) FROM read_parquet(?)", [str(file)]
        ).fetchall()
    assert [
        (1, "ann", DAY, 1.5, 2, ["tea"], [LATER], ["tea", "cup"], [7, 1], [10, 20]),
        (2, "bob", DAY, 10.0, 2, None, None, None, None, None),
    ] == rows
    assert (11.5,) == total


def test_our_reader_agrees_for_any_key_groups(codec, data):
    tables = read_snapshot(codec, data, KeyGroupRange(0, 1))
    assert {
        1: [
            {ANN: (1.5, 2)},
            {ANN: [(LATER, ("tea",))]},
            {ANN: {("tea",): (7,), ("cup",): (1,)}},
            {ANN: (10, 20)},
        ]
    } == tables
