"""The files of a checkpointLocation in which Spark's query begins, from those of statelog's."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from tests.support.locations.batch_records import one_operator
from tests.support.locations.histories import KEYS, NAMES, TTL_MS, History, key_of

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.restore import find_checkpoint
from statelog.core.source_position import parse_offsets, position_of
from statelog.errors import CheckpointError, IncompatibleFormatError, UsageError
from statelog.extensions.bad_records.marks import FROZEN_MARK, FROZEN_NAME
from statelog.extensions.migration.to_spark import (
    CHECKPOINT_COLUMN,
    EXPIRY_COLUMN,
    STATE_COLUMN,
    TIMERS_COLUMN,
    KeyRows,
    new_files,
)
from statelog.model import KeyGroupRange
from statelog.state.kinds import StateKind
from statelog.state.reader import StateReader
from statelog.state.schema import TIMERS_NAME, OperatorStateSchema, StateDescriptor
from statelog.testing.faulty_store import FaultyStore

FILES = '{"logOffset":12}'
KAFKA = '{"topic":{"0":7}}'
OF_STATELOG = "41"


class Files:
    """A checkpointLocation in memory."""

    url = "memory:/query"

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        data = self.files.get(name)
        return None if data is None else data.encode()[-(tail or 10**9) :]

    def names(self, folder: str) -> Sequence[str]:
        parts = (name.rpartition("/") for name in self.files)
        return [name for place, _, name in parts if place == folder]


def entry(number: int) -> str:
    return json.dumps({"path": f"file:///in/{number}", "timestamp": number, "batchId": number})


def query() -> Files:
    """Return a query at batch 5, which read entry 12 of a file source, compacted at 9."""
    times = {
        "batchWatermarkMs": 100,
        "batchTimestampMs": 2_000,
        "conf": {
            "spark.sql.shuffle.partitions": "7",
            "spark.sql.streaming.stateStore.providerClass": "HDFS",
            "spark.sql.streaming.multipleWatermarkPolicy": "max",
        },
    }
    logs = {f"sources/0/{number}": f"v1\n{entry(number)}" for number in (8, 10, 11, 12, 13)}
    compact = "\n".join(["v1", *(entry(number) for number in range(10))])
    return Files(
        {
            "metadata": '{"id":"q"}',
            "offsets/5": "\n".join(["v1", json.dumps(times), FILES, KAFKA, "-", OF_STATELOG]),
            "commits/5": 'v1\n{"nextBatchWatermarkMs":150}',
            "sources/0/9.compact": compact,
            "sources/1/0": "v1\nwhere Kafka began",
            **logs,
        }
    )


def record(**changes: Any) -> BatchRecord:
    values: dict[str, Any] = {
        "batch_id": 5, "time_mode": "eventtime", "now_ms": 2_000, "watermark_ms": 100,
        "position": position_of([FILES, KAFKA, None]), "source_folders": ["0", "1", "2"],
    }  # fmt: skip
    return one_operator(**{**values, **changes})


def files_for_spark(files: Files, **changes: Any) -> tuple[tuple[str | None, ...], dict[str, str]]:
    """Return the offsets of the new query, and its files."""
    offsets, contents = new_files(files, record(**changes), lambda name, value: f"new {value}")
    return offsets, {name: data.decode() for name, data in contents.items()}


@pytest.mark.parametrize(
    "changes",
    [{}, {"source_folders": None}, {"position": None}],
    ids=["all known", "without the names of the logs", "without a position"],
)
def test_the_new_query_begins_where_the_old_one_ended(changes: dict[str, Any]) -> None:
    offsets, contents = files_for_spark(query(), **changes)
    assert offsets == (FILES, KAFKA, None)
    assert list(contents) == ["metadata", "sources/0/0", "sources/0/1", "offsets/0"]
    planned = parse_offsets(contents["offsets/0"].encode(), "offsets/0")
    assert planned.offsets == ('{"logOffset":1}', KAFKA, None)
    assert (planned.watermark_ms, planned.timestamp_ms) == (150, 2_000)
    settings = json.loads(contents["offsets/0"].split("\n")[1])["conf"]
    assert settings == {"spark.sql.streaming.multipleWatermarkPolicy": "new max"}
    assert json.loads(contents["metadata"])["id"] not in ("q", "")
    # Spark has seen the files of the old query, and reads none of them.
    assert contents["sources/0/0"] == "v1"
    version, *lines = contents["sources/0/1"].split("\n")
    assert version == "v1"
    assert [json.loads(line) for line in lines] == [
        {"path": f"file:///in/{number}", "timestamp": number, "batchId": 0} for number in range(13)
    ]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda files: files.pop("offsets/5"), "not_found"),
        (lambda files: files.pop("commits/5"), "undelivered"),
        (lambda files: files.pop("sources/0/11"), "not_found"),
        (
            lambda files: files.update({"offsets/5": files["offsets/5"].replace('"0":7', '"0":8')}),
            "gap",
        ),
    ],
)
def test_a_position_that_spark_cannot_continue_is_rejected(
    edit: Callable[[dict[str, str]], Any], reason: str
) -> None:
    changed = query()
    edit(changed.files)
    with pytest.raises(CheckpointError) as raised:
        files_for_spark(changed)
    assert raised.value.reason == reason


def test_the_state_of_a_different_query_and_named_sources_are_rejected() -> None:
    with pytest.raises(UsageError, match="of query q, but the state belongs to query other"):
        files_for_spark(query(), query_id="other")
    with pytest.raises(UsageError, match=r"of query \(none\), but the state"):
        files_for_spark(Files({}))
    changed = query()
    changed.files["offsets/5"] = changed.files["offsets/5"].replace("v1", "v2", 1)
    with pytest.raises(IncompatibleFormatError, match="by source name"):
        files_for_spark(changed)


def exported(reader: StateReader, now_ms: int, **options: Any) -> pa.Table:
    rows = KeyRows(reader.schema, reader.checkpoint_id, **options)
    halves = [KeyGroupRange(0, 2), KeyGroupRange(3, reader.key_groups.end)]
    keys = [key for part in halves for key in reader.keys(key_groups=part, now_ms=now_ms)]
    return pa.Table.from_batches([rows.of(key) for key in keys], rows.schema())


def expected(history: History, checkpoint_id: int, now_ms: int) -> dict[Any, dict[str, Any]]:
    """Return state, timers and expiry of each key by the model."""
    model = history.expected[checkpoint_id]
    by_key: dict[Any, dict[str, Any]] = {}
    for variable in model.schema.states:
        if variable.dropped:
            continue
        for key, rows in model.rows(variable.name, now_ms).items():
            row = by_key.setdefault(key_of(key), {"state": {}, "timers": None, "expiry": {}})
            if variable.name == TIMERS_NAME:
                row["timers"] = [time for time, _, _ in rows]
                continue
            values: Any = [value for _, value, _ in rows]
            expiry: Any = [expires for _, _, expires in rows]
            if variable.kind is StateKind.VALUE:
                (values,), (expiry,) = values, expiry
            elif variable.kind is StateKind.MAP:
                values = [{"key": (place,), "value": value} for place, value, _ in rows]
            row["state"][variable.name] = values
            if variable.ttl_ms is not None:
                row["expiry"][variable.name] = expiry
    return by_key


def by_key_of(table: pa.Table) -> dict[Any, dict[str, Any]]:
    """Return state, timers and expiry of each key by its row."""
    by_key = {}
    for row in table.to_pylist():
        state = {name: cell for name, cell in (row[STATE_COLUMN] or {}).items() if cell is not None}
        for name, cell in state.items():
            if NAMES[name] is StateKind.MAP:
                for entry in cell:
                    entry["key"] = tuple(entry["key"].values())
        expiry = row.get(EXPIRY_COLUMN) or {}
        by_key[row["k"], row["name"]] = {
            "state": state,
            "timers": row[TIMERS_COLUMN],
            "expiry": {name: times for name, times in expiry.items() if times is not None},
        }
    assert len(by_key) == table.num_rows <= KEYS, "a key has one row"
    return by_key


@pytest.mark.parametrize("seed", range(8))
def test_the_rows_are_those_of_the_model(seed: int) -> None:
    history = History(f"rows {seed}", FaultyStore())
    history.run()
    for checkpoint_id in list(history.expected)[-2:]:
        checkpoint = find_checkpoint(history.store, checkpoint_id)
        reader = StateReader(history.store, checkpoint)
        taken_at_ms = history.taken_at_ms[checkpoint_id]
        for now_ms in (taken_at_ms, taken_at_ms + TTL_MS // 2, taken_at_ms + 2 * TTL_MS):
            table = exported(reader, now_ms)
            assert set(table.column(CHECKPOINT_COLUMN).to_pylist()) <= {checkpoint_id}
            assert expected(history, checkpoint_id, now_ms) == by_key_of(table)


DAY = pa.schema([("day", pa.date32())])
NUMBER = pa.schema([("n", pa.int64())])


def schema(key: pa.Schema, *names: str) -> OperatorStateSchema:
    return OperatorStateSchema(
        "op", key, tuple(StateDescriptor(name, StateKind.VALUE, NUMBER) for name in names)
    )


def test_variables_can_be_chosen_and_names_must_be_those_of_columns() -> None:
    rows = KeyRows(schema(DAY, "total", "seen"), 7, variables=["seen"])
    assert rows.schema().field(STATE_COLUMN).type == pa.struct([("seen", pa.struct(NUMBER))])
    assert EXPIRY_COLUMN not in rows.schema().names
    with pytest.raises(
        UsageError, match="the state other does not exist; the checkpoint contains seen, total"
    ):
        KeyRows(schema(DAY, "total", "seen"), 7, variables=["seen", "other"])
    with pytest.raises(UsageError, match="the state without a name does not exist"):
        KeyRows(schema(DAY, "total"), 7, variables=[])
    for names in (["a", "A"], ["day", TIMERS_COLUMN]):
        with pytest.raises(UsageError, match="each column needs a unique name"):
            KeyRows(schema(pa.schema([(name, pa.int64()) for name in names]), "total"), 7)


def test_timestamps_in_state_lose_their_zone_and_those_of_keys_keep_it() -> None:
    moment = pa.timestamp("us", "UTC")
    nested = pa.schema([("at", moment), ("ats", pa.list_(moment)), ("by", pa.map_(moment, moment))])
    key = pa.schema([("at", moment)])
    operator = OperatorStateSchema("op", key, (StateDescriptor("v", StateKind.VALUE, nested),))
    schema = KeyRows(operator, 7).schema()
    assert schema.field("at").type == moment
    assert "UTC" not in str(schema.field(STATE_COLUMN).type)
    assert str(schema.field(STATE_COLUMN).type).count("timestamp[us]") == 4


def two_keys(**cells: list[Any]) -> pa.RecordBatch:
    """Return the state of two keys."""
    columns = {"key_group": [0, 0], "key.day": pa.array([1, 2], pa.date32()), **cells}
    return pa.RecordBatch.from_pydict(columns)


def test_marks_of_frozen_keys_are_not_moved() -> None:
    operator = OperatorStateSchema("op", DAY, (schema(DAY, "total").states[0], FROZEN_MARK))
    assert ["total"] == KeyRows(operator, 7).schema().field(STATE_COLUMN).type.names
    marks = [None, {"since_checkpoint": 3, "error": "E"}]
    keys = two_keys(total=[{"n": 5}, None], **{FROZEN_NAME: marks})
    (row,) = KeyRows(operator, 7).of(keys).to_pylist()
    assert ({"total": {"n": 5}}, None) == (row[STATE_COLUMN], row[TIMERS_COLUMN])
