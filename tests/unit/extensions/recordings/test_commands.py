"""`statelog replay`: steps, differences, the debugger, and what is refused."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import COLUMNS, OUTPUT, Steps

from statelog.cli import main as cli
from statelog.errors import ProcessorError, UsageError
from statelog.extensions.recordings.location import forget_key, list_recordings, objects_with_key
from statelog.extensions.testing.find_processor import find_processor
from statelog.extensions.testing.replay import debug_step, replay
from statelog.spark.query.record import Record

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).parents[4]
PROCESSORS = "tests.support.jobs.recorded_processors"
PLACES = "tests.unit.extensions.recordings.test_commands"
STEPS = ["--processor", f"{PROCESSORS}:Steps"]


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def job(tmp_path: Path) -> RecordedJob:
    """Return a job with two steps of k1, one of k2, and a failure of k3."""
    made = RecordedJob(
        str(tmp_path / "state"), Steps(), COLUMNS, OUTPUT, Record(keys=(("k1",), ("k2",)))
    )
    made.run([("k1", "add", 3), ("k1", "timer", 1), ("k2", "put", 1), ("k1", "yield", 0)], 1000)
    made.run([("k1", "append", 5)], 1150)
    with pytest.raises(ProcessorError):
        made.run([("k3", "add", 1), ("k3", "fail", 7)], 1200)
    return made


def test_the_recorded_keys_are_listed(job: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == cli.run(["replay", job.location, "--json"])
    found = {tuple(one["key"]): one for one in lines(capsys.readouterr().out)}
    assert {("k1",): (2, 0), ("k2",): (1, 0), ("k3",): (0, 1)} == {
        key: (one["steps"], one["failures"]) for key, one in found.items()
    }
    assert 0 == cli.run(["replay", job.location])
    assert "1 to 2" in capsys.readouterr().out


def test_steps_and_differences_in_json(
    job: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == cli.run(["replay", job.location, "k1", *STEPS, "--json"])
    first, second = lines(capsys.readouterr().out)
    assert [] == first["differences"] == second["differences"]
    assert {"total": [3, "t3"], "short": [3]} == first["after"]
    assert [1100] == second["timers_before"]
    words = ["replay", job.location, "k1", "--json", "--since", "0"]
    assert 1 == cli.run([*words, "--processor", f"{PROCESSORS}:OtherSteps"])
    first, second = lines(capsys.readouterr().out)
    assert ["output"] == [one["what"] for one in first["differences"]]
    assert [{"k": "k1", "what": "row", "n": 6}] == first["differences"][0]["recorded"]
    assert [{"k": "k1", "what": "row", "n": 7}] == first["differences"][0]["found"]


def test_a_failure_exits_with_1_and_says_so(
    job: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 1 == cli.run(["replay", job.location, "k3", *STEPS])
    text = capsys.readouterr().out
    assert "raised  ArithmeticError: cannot do 7" in text
    assert "fails as recorded" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nobody"], "has no recording of the key ('nobody',)"),
        (["k1", "k2"], "a key needs a value for each of (k string); 2 given"),
        (["k1", "--since", "stable"], "since is 'stable', which is no id, no tag of"),
        (["k1", "--since", "9"], "has no recording of the key ('k1',) after checkpoint 9"),
        (["k1", "--processor", "Steps"], "is named module:Class or file.py:Class"),
        (["k1", "--processor", "no_such_module:X"], "'no_such_module' cannot be imported"),
        (["k1", "--processor", "no/file.py:X"], "there is no file no/file.py"),
        (["k1", "--processor", f"{PROCESSORS}:Nothing"], "has no 'Nothing'"),
        (["k1", "--processor", "os:abort"], "os:abort is builtin_function_or_method, not a"),
        (["k1", "--processor", "json:loads"], "does not say what it returns, so it is not called"),
        (["k1", "--processor", "builtins:dict"], "is the class dict, not a StatefulProcessor"),
        (["k1", "--processor", f"{PLACES}:Needs"], "cannot be called without arguments"),
        (["k1", "--processor", f"{PLACES}:not_annotated"], "is not called; annotate it"),
        (["k1", "--processor", f"{PLACES}:other_annotated"], "is not called; annotate it"),
        (["k1", "--processor", f"{PROCESSORS}:COLUMNS"], "is str, not a StatefulProcessor"),
    ],
)
def test_a_wrong_call_is_refused(
    job: RecordedJob, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == cli.run(["replay", job.location, *words])
    assert said in capsys.readouterr().err


def test_a_location_without_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RecordedJob(str(tmp_path / "s"), Steps(), COLUMNS, OUTPUT, None).run([("k1", "add", 1)])
    assert 0 == cli.run(["replay", str(tmp_path / "s")])
    assert "no recordings" in capsys.readouterr().out
    assert 2 == cli.run(["replay", str(tmp_path / "s"), "k1", *STEPS])
    assert 2 == cli.run(["replay", str(tmp_path / "nothing")])


def test_a_processor_that_cannot_take_the_state_is_refused(
    job: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 1 == cli.run(
        [
            "replay",
            job.location,
            "k1",
            "--processor",
            "tests.unit.extensions.recordings.test_commands:Renamed",
        ]
    )
    assert "cannot begin with the recorded state" in capsys.readouterr().err


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
    step = next(
        one
        for one in replay(job.location, key, processor=processor)
        if one.differences or one.error is not None
    )
    shown = io.StringIO()
    debug_step(step, processor, stdin=io.StringIO("\n".join([*commands, ""])), stdout=shown)
    return shown.getvalue()


def test_the_debugger_stops_where_the_processor_raised(job: RecordedJob) -> None:
    text = debugged(job, "k3", Steps(), "p op, n", "quit")
    assert "('fail', 7)" in text


def test_the_debugger_stops_in_the_processor_before_a_difference(job: RecordedJob) -> None:
    class Doubled(Steps):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            for row in super().handleInputRows(key, rows, timerValues):
                yield Row(k=row.k, what=row.what, n=row.n * 2)

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
    with pytest.raises(UsageError, match="has no recording of the key"):
        replay(job.location, "k1", processor=Steps())
    (other,) = replay(job.location, "k2", processor=Steps())
    assert () == other.differences
    assert ([1], {"counts": {(1,): (1,)}}) == (
        [row.n for row in other.input],
        {name: one for name, one in other.recorded_result.state.items() if name == "counts"},  # type: ignore[union-attr]
    )
    assert (failed,) == forget_key(store, "k3").deleted
    assert all(not one.is_failure for one in list_recordings(store))
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
