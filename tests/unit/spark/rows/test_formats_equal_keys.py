"""Every format of rows gives keys that are equal in Spark to the processor as one key."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from tests.support.values.time_zones import REPEATED_HOURS, ZONES

from statelog.extensions.columns.rows import ColumnarInput
from statelog.spark import StatefulProcessor
from statelog.spark.rows.interface import KeyedInput
from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.pandas_input import FrameInput, PandasSettings
from statelog.spark.rows.spark_row import RowInput
from statelog.state.encoding.values import KeyCodec
from statelog.testing import ProcessorTester

IN_UTC = pa.timestamp("us", "UTC")


def pair_of(at: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field("start", at), pa.field("part", pa.float64())])


def read(format_name: str, kind: pa.DataType, stored: pa.DataType, values: list[Any]) -> KeyedInput:
    codec = KeyCodec(pa.schema([("key", stored)]))
    layout = InputLayout((1,), 1)
    keyed_input: KeyedInput = (
        RowInput(layout, codec)
        if format_name == "rows"
        else FrameInput(layout, codec, PandasSettings.defaults(getattr(kind, "tz", None) or "UTC"))
    )
    groups = pa.array([3] * len(values), pa.int32())
    columns = [groups, pa.array(values, kind)]
    keyed_input.read([pa.RecordBatch.from_arrays(columns, ["group", "key"])])
    return keyed_input


@pytest.mark.parametrize("format_name", ["rows", "pandas"])
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("is_nested", [False, True])
def test_each_moment_is_the_key_of_the_log(format_name: str, zone: str, is_nested: bool) -> None:
    moments = REPEATED_HOURS[zone]
    values: list[Any] = [*moments, *reversed(moments)]
    kind, stored = pa.timestamp("us", zone), IN_UTC
    if is_nested:
        values = [{"start": value, "part": 0.0} for value in values]
        kind, stored = pair_of(kind), pair_of(stored)
    keyed_input = read(format_name, kind, stored, values)
    entries = [(key, shown, list(rows)) for key, shown, rows in keyed_input.keys(3)]
    from_log = KeyCodec(pa.schema([("key", stored)])).decode([pa.array(values, stored)])
    assert from_log[: len(moments)] == [key for key, _, _ in entries]
    if format_name == "pandas":
        assert {2} == {sum(map(len, frames)) for _, _, frames in entries}
        return
    assert {2} == {len(rows) for _, _, rows in entries}
    if not is_nested:  # the processor gets it in the session's time zone
        assert {zone} == {str(shown[0].tzinfo) for _, shown, _ in entries}


@pytest.mark.parametrize("format_name", ["rows", "pandas"])
@pytest.mark.parametrize("first", [0.0, -0.0])
@pytest.mark.parametrize("is_nested", [False, True])
def test_processors_get_zero_for_both_zeros(
    format_name: str, first: float, is_nested: bool
) -> None:
    kind, values = pa.float64(), [first, 1.5, -first]
    if is_nested:
        kind = pair_of(IN_UTC)
        values = [{"start": None, "part": value} for value in values]
    keyed_input = read(format_name, kind, kind, values)
    entries = [(repr(key), repr(shown)) for key, shown, _ in keyed_input.keys(3)]
    expected = []
    for number in (0.0, 1.5):
        shown = ({"start": None, "part": number},) if is_nested else (number,)
        expected.append((repr(((None, number),) if is_nested else (number,)), repr(shown)))
    assert expected == entries


@pytest.mark.parametrize("is_distinct", [False, True])
def test_the_keys_of_columns_have_one_zero(is_distinct: bool) -> None:
    codec = KeyCodec(pa.schema([("key", pa.float64())]))
    keyed_input = ColumnarInput(InputLayout((1,), 1), codec, is_distinct=is_distinct)
    values = pa.array([-0.0, 2.0] if is_distinct else [-0.0, 2.0, 0.0])
    groups = pa.array([3] * len(values), pa.int32())
    keyed_input.read([pa.RecordBatch.from_arrays([groups, values], ["group", "key"])])
    keyed = keyed_input.keyed("UTC")
    assert keyed is not None
    assert "[0.0, 2.0]" == repr(keyed[0]["key"].to_pylist())


class Calls(StatefulProcessor):
    """Counts the calls of each key."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        n = (self.count.get() or (0,))[0] + 1
        self.count.update((n,))
        yield Row(n=n)


@pytest.mark.parametrize("schema", [None, "at timestamp"])
def test_a_tester_has_a_key_for_each_moment_in_any_zone(schema: str | None) -> None:
    zone = "America/New_York"
    in_zone = pa.array(REPEATED_HOURS[zone], pa.timestamp("us", zone)).to_pylist()
    in_utc = pa.array(REPEATED_HOURS[zone], IN_UTC).to_pylist()
    tester = ProcessorTester(Calls(), keySchema=schema)
    for expected, keys in enumerate([in_zone, in_utc, in_zone], 1):
        for key in keys:
            assert [Row(n=expected)] == tester.test(key, [Row(x=1)])
        tester.restart()
