"""`statelog replay`: steps, differences, the debugger, and what is refused."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import Steps, steps_job

from statelog.errors import ProcessorError, UsageError
from statelog.extensions.recordings.location import forget_key, list_recordings, objects_with_key
from statelog.extensions.testing.find_processor import find_processor
from statelog.extensions.testing.replay import debug_step, replay
from statelog.spark.query.record import Record

pytestmark = pytest.mark.campaign

PROCESSORS = "tests.support.jobs.recorded_processors"
STEPS = ["--processor", f"{PROCESSORS}:Steps"]


@pytest.fixture
def job(tmp_path: Path) -> RecordedJob:
    """Return a job with two steps of k1, one of k2, and a failure of k3."""
    job = steps_job(tmp_path / "state", record=Record(keys=(("k1",), ("k2",))))
    job.run([("k1", "add", 3), ("k1", "timer", 1), ("k2", "put", 1), ("k1", "yield", 0)], 1000)
    job.run([("k1", "append", 5)], 1150)
    with pytest.raises(ProcessorError):
        job.run([("k3", "add", 1), ("k3", "fail", 7)], 1200)
    return job


def test_recorded_keys_are_listed_and_failures_replayed(call, job: RecordedJob) -> None:
    keys = call.lines("replay", job.location)
    assert {"k1": (2, 0), "k2": (1, 0), "k3": (0, 1)} == {
        key["key"][0]: (key["steps"], key["failures"]) for key in keys
    }
    assert "1 to 2" in call("replay", job.location)
    said = call("replay", job.location, "k3", *STEPS, status=1)
    assert "raised  ArithmeticError: cannot do 7" in said
    assert "fails as recorded" in said


def test_steps_and_differences_in_json(call, job: RecordedJob) -> None:
    first, second = call.lines("replay", job.location, "k1", *STEPS)
    assert [] == first["differences"] == second["differences"]
    assert {"total": [3, "t3"], "short": [3]} == first["after"]
    assert [1100] == second["timers_before"]
    other = ["--since", "0", "--processor", f"{PROCESSORS}:OtherSteps"]
    first, second = call.lines("replay", job.location, "k1", *other, status=1)
    (difference,) = first["differences"]
    assert "output" == difference["what"]
    assert [{"k": "k1", "what": "row", "n": 6}] == difference["recorded"]
    assert [{"k": "k1", "what": "row", "n": 7}] == difference["found"]
    (unchanged,) = call.lines("replay", job.location, "k2", *other)
    assert [] == unchanged["differences"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nobody"], "does not contain a recording of the key ('nobody',)"),
        (["k1", "k2"], "a key requires a value for each of (k string); got 2"),
        (["k1", "--since", "stable"], "since must be an id, a tag of"),
        (
            ["k1", "--since", "9"],
            "does not contain a recording of the key ('k1',) after checkpoint 9",
        ),
        (["k1", "--processor", "Steps"], "name the processor as module:Class or file.py:Class"),
        (["k1", "--processor", "no_such_module:X"], "'no_such_module' cannot be imported"),
        (["k1", "--processor", "no/file.py:X"], "the file no/file.py does not exist"),
        (["k1", "--processor", f"{PROCESSORS}:Nothing"], "does not define 'Nothing'"),
        (["k1", "--processor", "os:abort"], "os:abort is builtin_function_or_method, not a"),
        (
            ["k1", "--processor", "json:loads"],
            "without a return annotation, so statelog does not call it",
        ),
        (["k1", "--processor", "builtins:dict"], "is the class dict, not a StatefulProcessor"),
        (["k1", "--processor", f"{__name__}:Needs"], "cannot be called without arguments"),
        (["k1", "--processor", f"{__name__}:not_annotated"], "does not call it; annotate it"),
        (["k1", "--processor", f"{__name__}:other_annotated"], "does not call it; annotate it"),
        (["k1", "--processor", f"{PROCESSORS}:COLUMNS"], "is str, not a StatefulProcessor"),
        (["k1", "--processor", f"{__name__}:Renamed"], "cannot start with the recorded state"),
    ],
)
def test_a_wrong_call_is_refused(call, job: RecordedJob, words: list[str], said: str) -> None:
    assert said in call("replay", job.location, *words, status=1 if "recorded state" in said else 2)


def test_a_location_without_recordings(call, tmp_path: Path) -> None:
    job = steps_job(tmp_path / "state")
    job.run([("k1", "add", 1)])
    assert "no recordings" in call("replay", job.location)
    call("replay", job.location, "k1", *STEPS, status=2)
    call("replay", str(tmp_path / "nothing"), status=2)


class Needs(Steps):
    """A processor with an argument."""

    def __init__(self, limit: int) -> None:
        super().__init__()


def not_annotated():  # type: ignore[no-untyped-def]
    raise AssertionError("called")


def other_annotated() -> dict[str, int]:
    raise AssertionError("called")


class Renamed(StatefulProcessor):
    """Keeps *total* as another kind of state."""

    def init(self, handle: Any) -> None:
        self.total = handle.getMapState("total", "k long", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        return iter(())


# ----------------------------------------------------------------------------------- the debugger


def debugged(job: RecordedJob, key: str, processor: Any, *commands: str) -> str:
    steps = replay(job.location, key, processor=processor)
    step = next(step for step in steps if step.differences or step.error is not None)
    shown = io.StringIO()
    debug_step(step, processor, stdin=io.StringIO("\n".join([*commands, ""])), stdout=shown)
    return shown.getvalue()


def test_the_debugger_stops_where_the_processor_raised_or_begins_to_differ(
    job: RecordedJob,
) -> None:
    class Doubled(Steps):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            for row in super().handleInputRows(key, rows, timerValues):
                yield Row(k=row.k, what=row.what, n=row.n * 2)

    assert "('fail', 7)" in debugged(job, "k3", Steps(), "p op, n", "quit")
    text = debugged(job, "k1", Doubled(), "p key", "p self.total.get()", "continue")
    assert "('k1',)" in text
    assert "handleInputRows()" in text


# ------------------------------------------------------------------------------------ personal data


def test_a_key_is_removed_from_all_recordings(job: RecordedJob) -> None:
    store = job.store
    both = objects_with_key(store, "k1")
    assert 2 == len(both)
    (failed,) = objects_with_key(store, "k3")
    assert failed.startswith("recordings/failed/")
    planned = forget_key(store, "k1", dry_run=True)
    assert (tuple(both), ()) == (planned.rewritten, planned.deleted)
    assert both == objects_with_key(store, "k1")
    assert planned == forget_key(store, "k1")
    assert [] == objects_with_key(store, "k1")
    with pytest.raises(UsageError, match="does not contain a recording of the key"):
        replay(job.location, "k1", processor=Steps())
    (other,) = replay(job.location, "k2", processor=Steps())
    assert () == other.differences
    assert [1] == [row.n for row in other.input]
    assert {(1,): (1,)} == other.recorded_result.state["counts"]  # type: ignore[union-attr]
    assert (failed,) == forget_key(store, "k3").deleted
    assert all(not recording.is_failure for recording in list_recordings(store))
    assert [] == objects_with_key(store, "k1")
    job.run([("k1", "add", 1)], 1300)  # the query goes on


def test_an_instance_and_a_function_name_a_processor(tmp_path: Path) -> None:
    file = tmp_path / "my_job.py"
    file.write_text(
        "from tests.support.jobs.recorded_processors import Steps\n"
        "INSTANCE = Steps()\ndef make() -> Steps:\n    return Steps()\n"
    )
    for name in ("INSTANCE", "make"):
        assert isinstance(find_processor(f"{file}:{name}"), Steps)
