"""The source of a written test: whatever text a recording holds, it stays text."""

from __future__ import annotations

import ast
import dataclasses
import json
import keyword
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from tests.forged import NAMES
from tests.recorded_processors import Steps

from statelog.errors import UsageError
from statelog.spark.rows.pandas_input import PandasSettings
from statelog.spark.testing.ddl import parse_ddl
from statelog.spark.testing.find_processor import FoundProcessor
from statelog.spark.testing.literals import Literals, ddl_of, quoted
from statelog.spark.testing.replay import ReplayedStep
from statelog.spark.testing.replay_tester import StepResult
from statelog.spark.testing.tester_rows import rows_in
from statelog.spark.testing.write_test import file_text
from statelog.state.kinds import StateKind
from statelog.state.recordings import Call, Failure, RecordedStep, TaskRecording
from statelog.state.schema.descriptors import OperatorStateSchema, StateDescriptor

STEPS = FoundProcessor(Steps(), "tests.recorded_processors", "Steps", True, "/a 'folder\"")
CALLED = {
    "new_job", "ProcessorTester", "Steps", "begin", "test", "testInPandas", "testNoData",
    "typedOutput", "stateOf", "expiryOf", "peekTimers", "Row", "DataFrame", "Series", "float", "plain",
    "insert", "str", "Path", "isinstance", "items",
}  # fmt: skip
"""All that a written test calls."""

pieces = st.sampled_from(
    (*NAMES, '"', "'", '"""', "\n", "\\", "#", "raise SystemExit(9)", "{x!r}", "`", "class", "cls")
)
hostile = st.one_of(
    st.lists(st.one_of(pieces, st.text(max_size=3)), max_size=4).map("".join),
    st.sampled_from([*keyword.kwlist, "ﬁ", "a b", ""]),
)
stored = hostile.map(lambda text: text.encode("utf-8", "replace").decode())
"""What an Arrow field or value can hold."""


@st.composite
def steps(draw: st.DrawFn) -> ReplayedStep:
    """Return a step with hostile text in every field that has text."""
    key_name, value = draw(stored), draw(stored)
    first, second = draw(st.lists(stored, min_size=2, max_size=2, unique=True))
    inner = pa.struct([(draw(stored), pa.string())])
    is_pandas, failed = draw(st.booleans()), draw(st.booleans())
    variables = (
        StateDescriptor(draw(stored), StateKind.VALUE, pa.schema([(draw(stored), pa.string())])),
        StateDescriptor(draw(stored) + "m", StateKind.MAP, pa.schema([(draw(stored), inner)]),
                        pa.schema([(draw(stored), pa.string())])),
    )  # fmt: skip
    key = pa.schema([(key_name, pa.string())])
    frames = {
        **dataclasses.asdict(PandasSettings.defaults(draw(hostile))),
        "columns": json.dumps({"type": "struct", "fields": []}),
    }
    cells = [pa.array([0], pa.int32()), *(pa.array([draw(stored)]) for _ in range(3))]
    inputs = pa.Table.from_arrays(cells, ["group", "key " + first, first, second])
    nested = pa.array([{inner[0].name: value}], inner)
    output = pa.Table.from_arrays([pa.array([value]), nested], [first, second])
    task = TaskRecording(
        operator_id=draw(hostile), operator=0, checkpoint_id=draw(st.integers(-9, 9)),
        batch_id=draw(st.integers(-9, 9)), time_mode=draw(st.sampled_from(["none", "eventtime"])),
        now_ms=1, watermark_ms=1, recorded_at_ms=draw(st.sampled_from([0, -(1 << 62), 1 << 62])),
        processor=draw(hostile), source=draw(hostile), row_format="pandas" if is_pandas else "rows",
        frames=frames, schema=b"", key_positions=(1,), first_input=1, initial_positions=(1,),
        first_initial=1, before=b"", after=b"", input=b"", initial=b"", calls=[], output=b"",
        failure=Failure(method=draw(hostile), error=draw(hostile), message=draw(hostile), lines=draw(hostile))
        if failed else None,
    )  # fmt: skip
    state = {
        variables[0].name: (draw(stored),),
        variables[1].name: {(draw(stored),): ({inner[0].name: draw(stored)},)},
        draw(stored): [draw(hostile)],
    }
    result = StepResult(rows_in(output), state, {}, [])
    recorded = RecordedStep(
        task=task, schema=OperatorStateSchema(draw(stored), key, variables), key=(value,),
        before=inputs, after=None, input=inputs, initial=inputs.slice(0, 0),
        calls=(Call(draw(hostile), -1, 1),), output=output,
    )  # fmt: skip
    return ReplayedStep(
        recorded=recorded, input=[], before=state, timers_before=[], expiry_before={},
        recorded_result=None if failed else result, found=result, error=None, differences=(),
    )  # fmt: skip


def check(text: str) -> None:
    """Check that source imports and calls nothing but what a written test does."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            target = node.func
            assert isinstance(target, ast.Name | ast.Attribute | ast.Call), ast.dump(node)
            if not isinstance(target, ast.Call):  # Row("names")("values")
                assert (target.id if isinstance(target, ast.Name) else target.attr) in CALLED
        if isinstance(node, ast.Import):
            assert {one.name for one in node.names} <= {"sys", "pandas"}
        if isinstance(node, ast.ImportFrom):
            assert node.module in (
                "pathlib", "pyspark.sql", "statelog.testing", "tests.recorded_processors",
            )  # fmt: skip
        assert not isinstance(node, ast.Raise | ast.ClassDef | ast.Delete | ast.Global | ast.With)
    assert all(line.isprintable() for line in text.splitlines())
    names = [one.name for one in tree.body if isinstance(one, ast.FunctionDef)]
    assert len(set(names)) == len(names)
    space: dict[str, Any] = {"__name__": "written", "__file__": "/written/test.py"}
    exec(compile(tree, "written", "exec"), space)  # the imports, KEY, and the definitions


@settings(max_examples=150, deadline=None)
@given(st.lists(steps(), min_size=1, max_size=3), st.booleans())
def test_stored_text_is_never_code(replayed: list[ReplayedStep], expects_today: bool) -> None:
    first = replayed[0].recorded.task.row_format
    replayed = [one for one in replayed if one.recorded.task.row_format == first]
    text = file_text(replayed, STEPS, Path("/written/test.py"), expects_today=expects_today)
    check(text)


@given(hostile)
@example("\udc80")
def test_a_literal_is_the_text(text: str) -> None:
    assert text == ast.literal_eval(quoted(text))
    assert text == ast.literal_eval(Literals().of(text))


@given(st.lists(stored, min_size=1, max_size=3, unique=True), stored)
@example(["class", "ﬁ"], "x")
@example(["cls"], "x")
@example(["a", "None"], "x")
def test_a_row_has_the_fields_that_were_recorded(names: list[str], value: str) -> None:
    row = Row(*names)(*[value] * len(names))
    written = eval(
        Literals().row(row, pa.schema([(one, pa.string()) for one in names])), {"Row": Row}
    )
    assert names == list(written.__fields__)
    assert tuple(row) == tuple(written)


@given(st.lists(stored.filter(bool), min_size=2, max_size=2, unique=True))
def test_ddl_has_the_names_that_were_recorded(names: list[str]) -> None:
    inner = pa.struct([(names[1], pa.list_(pa.int64()))])
    schema = pa.schema([(names[0], inner), (names[1], pa.map_(pa.string(), inner))])
    parsed = parse_ddl(ddl_of(schema))
    assert names == parsed.names
    assert [names[1]] == parsed[0].dataType.names == parsed[1].dataType.valueType.names  # type: ignore[union-attr]


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(UsageError, match="a value of type object cannot be written as code"):
        Literals().of(object())


@settings(max_examples=1)
@given(steps())
def test_a_module_that_no_test_can_import_is_refused(step: ReplayedStep) -> None:
    found = FoundProcessor(Steps(), "my-job", "Steps", True)
    with pytest.raises(UsageError, match="rename the module"):
        file_text([step], found, Path("/written/test.py"))
