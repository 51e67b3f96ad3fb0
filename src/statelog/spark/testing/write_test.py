"""
Write recorded steps as a pytest file: plain code with the recorded values as literals.

A step that was committed becomes a test that asserts the recorded rows, state and timers: it passes
with the processor that was recorded.  A step that failed becomes a test that runs it: it fails as
production did, until the processor is corrected.  Where the recording is what was wrong, a test can
assert instead what the processor of today makes of the step.

All names in a recording are data.  `literals` writes them; this module formats only what it knows:
numbers, and the names that the user gave.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from statelog.errors import UsageError
from statelog.spark.rows.layout import InputLayout
from statelog.spark.testing.find_processor import FoundProcessor
from statelog.spark.testing.literals import Literals, braces, comment, ddl_of, quoted, wrapped
from statelog.spark.testing.replay import ReplayedStep, row_format_of
from statelog.spark.testing.replay_tester import StepResult, time_mode_of
from statelog.spark.testing.tester_rows import rows_in
from statelog.state.encoding.values import KeyCodec
from statelog.state.recordings import RecordedStep
from statelog.state.schema.descriptors import OperatorStateSchema, StateDescriptor

_PLAIN = '''

def plain(value):
    """Return a value with text for each NaN, which equals nothing."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return [[plain(name), plain(one)] for name, one in value.items()]
    return "NaN" if value != value else value
'''
_OTHERS = ("import pandas", "from pyspark", "from statelog")
_LOCAL = '''

def local(moment):
    """State holds timestamps in the zone of the machine, without naming it."""
    return moment.astimezone().replace(tzinfo=None)
'''


def steps_to_write(steps: Sequence[ReplayedStep]) -> list[ReplayedStep]:
    """Return the steps that differ or failed; all of them if none does."""
    chosen = [step for step in steps if step.differences or step.error is not None]
    return chosen or list(steps)


def file_text(
    steps: Sequence[ReplayedStep],
    processor: FoundProcessor,
    file: Path,
    *,
    expects_today: bool = False,
) -> str:
    """
    Return the code of a pytest file.

    Args:
        steps: What to write, at least one step.
        processor: The processor, as the file imports it.
        file: Where the file will be, for the path of the processor's module.
        expects_today: The tests assert what the processor of today makes of the steps, in place of
            what was recorded.

    Raises:
        UsageError: A test cannot import the processor.
    """
    written = Literals()
    written.imports.add("from statelog.testing import ProcessorTester")
    first = steps[0].recorded
    is_pandas = first.task.row_format == "pandas"
    if is_pandas:
        written.imports.add("import pandas as pd")
    names = _names(steps)
    tests = [
        _test(step, name, written, is_pandas, expects_today)
        for step, name in zip(steps, names, strict=True)
    ]
    key = _key(first, written)
    tester = _tester(first, processor)
    helpers = (_LOCAL if written.has_local else "") + (_PLAIN if written.has_nan else "")
    return (
        f"{_head(first)}\n\n{_imports(written, processor, file)}\n"
        f"KEY = {key}\n{helpers}\n\n{tester}\n\n\n" + "\n\n\n".join(tests) + "\n"
    )


def _head(step: RecordedStep) -> str:
    return (
        '"""\nWhat one key of an operator saw, recorded by a running query.'
        "\n\nWritten by `statelog replay --write-test`.  It contains recorded data.\n"
        f'"""\n\n{comment(f"The operator: {quoted(step.task.operator_id)}.")}'
    )


def _names(steps: Sequence[ReplayedStep]) -> list[str]:
    """Return the name of each test; no two are equal, or pytest would run one of them."""
    names: list[str] = []
    for step in steps:
        number = str(step.recorded.task.batch_id).replace("-", "minus_")
        name = f"test_batch_{number}" + ("_does_not_fail" if step.recorded.failure else "")
        again = sum(each.partition("__")[0] == name for each in names)
        names.append(f"{name}__{again + 1}" if again else name)
    return names


def _imports(written: Literals, processor: FoundProcessor, file: Path) -> str:
    lines = set(written.imports)
    path = ""
    if not all(map(str.isidentifier, [*processor.module.split("."), *processor.name.split(".")])):
        raise UsageError(
            f"a test cannot import {processor.module}:{processor.name}; rename the module"
        )
    if processor.folder:
        lines |= {"import sys", "from pathlib import Path"}
        relative = quoted(os.path.relpath(processor.folder, file.resolve().parent))
        path = f"\nsys.path.insert(0, str(Path(__file__).parent / {relative}))\n"
    own_lines = [line for line in lines if line.startswith(_OTHERS)]
    standard = sorted(
        lines.difference(own_lines), key=lambda each: (each.startswith("from "), each)
    )
    groups = [standard, sorted(own_lines, key=lambda each: (each.startswith("from "), each))]
    import_line = f"from {processor.module} import {processor.name.partition('.')[0]}"
    note = "  # noqa: E402" if path else ""
    blocks = ["\n".join(group) for group in groups if group]
    return "\n\n".join(blocks) + f"\n{path}\n{import_line}{note}\n"


def _key(step: RecordedStep, written: Literals) -> str:
    schema = step.schema.key_schema
    if len(step.key) == 1:
        return written.of(step.key[0], schema.types[0])
    return written.values(step.key, schema)


def _tester(step: RecordedStep, processor: FoundProcessor) -> str:
    lines = [f"{processor.name}()," if processor.is_called else f"{processor.name},"]
    lines.append(f"timeMode={quoted(time_mode_of(step))},")
    if step.task.time_mode == "eventtime":
        lines.append("eventTimeExtractor=lambda row: 2**62,  # late rows were dropped before")
    lines.append(f"keySchema={quoted(ddl_of(step.schema.key_schema))},")
    lines.append(f"outputStructType={quoted(ddl_of(step.output.schema))},")
    inner = "".join(f"        {line}\n" for line in lines)
    return f"def new_job():\n    return ProcessorTester(\n{inner}    )"


def _test(
    step: ReplayedStep, name: str, written: Literals, is_pandas: bool, expects_today: bool
) -> str:
    failure = step.recorded.failure
    result = step.found if expects_today else step.recorded_result
    notes = [f"{_when(step.recorded)}."]
    if failure is not None:
        told = " ".join(f"{failure.error}: {failure.message}".split())
        method = quoted(failure.method) if failure.method else "the new state"
        notes = [f"{_when(step.recorded)}: {method} raised", f"{quoted(told[:300])}."]
    if expects_today and result is not None:
        notes.append("Expected is what the processor made of it when this test was written.")
    lines = [f"def {name}():", *(f"    {comment(note)}" for note in notes)]
    lines.append("    job = new_job()")
    for broadcast, table in step.recorded.broadcasts.items():
        rows = [written.row(row, table.schema) for row in rows_in(table)]
        begin = f"job.setBroadcast({quoted(broadcast)}, ["
        lines.append(wrapped(begin, rows, f"], {quoted(ddl_of(table.schema))})"))
    lines.append(_begin(step, written))
    call = _call(step, written, is_pandas)
    if result is None:
        lines.append(f"{call}  # fails, until the processor is corrected")
        return "\n".join(lines)
    lines.append(call.replace("    job.", "    output = job.", 1))
    lines += _assertions(step.recorded, result, written, is_pandas)
    return "\n".join(lines)


def _when(step: RecordedStep) -> str:
    task = step.task
    when = f"Batch {task.batch_id}, checkpoint {task.checkpoint_id}"
    try:
        moment = dt.datetime.fromtimestamp(task.recorded_at_ms / 1000, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return when
    return f"{when}, {moment:%Y-%m-%d %H:%M:%S} UTC"


def _begin(step: ReplayedStep, written: Literals) -> str:
    task, schema = step.recorded.task, step.recorded.schema
    parts = ["KEY"]
    if step.before:
        parts.append(f"state={_state(step.before, schema, written, indent=8)}")
    if step.timers_before:
        parts.append(f"timers={list(step.timers_before)!r}")
    if step.expiry_before:
        expiry = _state(step.expiry_before, schema, written, is_expiry=True, indent=8)
        parts.append(f"expiresAtMs={expiry}")
    if task.time_mode != "none":
        parts.append(f"processingTimeMs={task.now_ms}")
        if task.watermark_ms >= 0:
            parts.append(f"watermarkMs={task.watermark_ms}")
    return wrapped("job.begin(", parts, ")")


def _call(step: ReplayedStep, written: Literals, is_pandas: bool) -> str:
    recorded = step.recorded
    method = "testInPandas" if is_pandas else "test"
    if not recorded.input.num_rows and not recorded.initial.num_rows:
        return "    job.testNoData()"
    form = _frames if is_pandas else _rows
    rows = form(recorded, written, initial=False)
    if not recorded.initial.num_rows:
        return _long_call(f"job.{method}(KEY, ", rows, ")", is_pandas)
    first = form(recorded, written, initial=True)
    both = [_one(rows, is_pandas), f"initialState=[{', '.join(first)}]"]
    return wrapped(f"job.{method}(", ["KEY", *both], ")")


def _one(rows: Sequence[str], is_pandas: bool) -> str:
    return rows[0] if is_pandas else f"[{', '.join(rows)}]"


def _long_call(begin: str, rows: Sequence[str], end: str, is_pandas: bool) -> str:
    if is_pandas:
        return f"    {begin}{rows[0]}{end}"
    return wrapped(f"{begin}[", rows, f"]{end}")


def _rows(step: RecordedStep, written: Literals, *, initial: bool) -> list[str]:
    table = step.initial if initial else step.input
    first = step.task.first_initial if initial else step.task.first_input
    if not table.num_rows:
        return []
    values = table.select(range(first, table.num_columns))
    return [written.row(row, values.schema) for row in rows_in(values)]


def _frames(step: RecordedStep, written: Literals, *, initial: bool) -> list[str]:
    """Return the rows as one frame with the types that the processor got."""
    import pandas as pd  # here, because its import takes time

    task = step.task
    table = step.initial if initial else step.input
    positions = task.initial_positions if initial else task.key_positions
    first = task.first_initial if initial else task.first_input
    if not table.num_rows:
        return ["pd.DataFrame()"]
    read = row_format_of(step).input(
        InputLayout(positions, first), KeyCodec(step.schema.key_schema)
    )
    read.read(table.combine_chunks().to_batches())
    frames: list[object] = []
    for key_group in read.key_groups():
        for _, _, some in read.keys(key_group):
            frames += some
    whole = pd.concat(frames, ignore_index=True)
    columns = []
    for name in whole.columns:
        column = whole[name]
        values = [None if each is pd.NaT else each for each in column.tolist()]
        if column.dtype.kind in "mM":
            values = [None if value is None else str(value) for value in values]
        cells = ", ".join(written.of(value) for value in values)
        dtype = quoted(str(column.dtype))
        columns.append(f"{quoted(name)}: pd.Series([{cells}], dtype={dtype})")
    inner = "".join(f"            {each},\n" for each in columns)
    return [f"pd.DataFrame(\n        {{\n{inner}        }}\n    )"]


def _assertions(
    recorded: RecordedStep, result: StepResult, written: Literals, is_pandas: bool
) -> list[str]:
    checked = Literals()
    rows = [checked.row(row, recorded.output.schema) for row in result.output]
    output = "job.typedOutput(output)"
    zone = str(recorded.task.frames.get("timezone", "UTC"))
    if is_pandas and zone not in ("UTC", "Etc/UTC"):
        output = f"job.typedOutput(output, timezone={quoted(zone)})"
    lines = [_equal(output, rows, checked)]
    literals = Literals()
    state = _state(result.state, recorded.schema, literals)
    state_call = "job.stateOf(KEY)"
    if literals.has_nan:
        state, state_call = f"plain({state})", f"plain({state_call})"
    lines.append(f"    assert {state_call} == {state}")
    written.take(checked)
    written.take(literals)
    if result.expiry:
        expiry = _state(result.expiry, recorded.schema, written, is_expiry=True)
        lines.append(f"    assert job.expiryOf(KEY) == {expiry}")
    if recorded.task.time_mode != "none":
        lines.append(f"    assert job.peekTimers(KEY) == {list(result.timers)!r}")
    return lines


def _equal(actual: str, rows: Sequence[str], written: Literals) -> str:
    if written.has_nan:
        return wrapped(f"assert plain({actual}) == plain([", rows, "])")
    return wrapped(f"assert {actual} == [", rows, "]")


def _state(
    state: Mapping[str, object],
    schema: OperatorStateSchema,
    written: Literals,
    *,
    is_expiry: bool = False,
    indent: int = 4,
) -> str:
    by_name = {each.name: each for each in schema.states if not each.dropped}
    parts = []
    for name, value in state.items():
        each = by_name.get(name)
        text = written.of(value) if each is None else _variable(each, value, written, is_expiry)
        parts.append(f"{written.of(name)}: {text}")
    return braces(parts, indent)


def _variable(variable: StateDescriptor, value: object, written: Literals, is_expiry: bool) -> str:
    def form(entry: Any) -> str:
        schema = variable.value_schema if len(entry or ()) == len(variable.value_schema) else None
        return written.values(entry, schema, in_state=True)

    plain = repr if is_expiry else form
    if isinstance(value, list):
        return f"[{', '.join(map(plain, value))}]"
    if not isinstance(value, dict):
        return plain(value)
    keys: pa.Schema | None = variable.user_key_schema
    parts = [
        f"{written.values(user_key, keys, in_state=True)}: {plain(entry)}"
        for user_key, entry in value.items()
    ]
    return f"{{{', '.join(parts)}}}"
