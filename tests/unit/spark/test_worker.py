"""How an error of a task is reported, and the parts of extensions in a task's extras."""

import multiprocessing
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from statelog.errors import (
    CheckpointError,
    FencedError,
    InvariantError,
    ObjectNotFoundError,
    ProcessorError,
    UnavailableError,
)
from statelog.extensions.bad_records.dead_letters import (
    BAD_RECORDS,
    NO_FAILURE,
    FailedPart,
    failures_of,
)
from statelog.model import KeyGroupRange
from statelog.spark.driver.failures import cause_of
from statelog.spark.query.processor_checks import ProcessExit, described
from statelog.spark.worker.failures import (
    ends_of_process_are_errors,
    processor_lines,
    reported_to_driver,
)
from statelog.spark.worker.protocol import TaskAck, TaskPlace, part_of

PROCESSOR: Any = object()


def told(error: Exception, location: str = "file:///state") -> Any:
    """What the driver makes of a task's error, after Spark has wrapped its text."""
    with pytest.raises(Exception) as raised, reported_to_driver(location):
        raise error
    text = f"{type(raised.value).__module__}.{type(raised.value).__name__}: {raised.value}"
    lost = f"Job aborted.\n  File x, line 1\n{text}\n SQLSTATE: 39000\n\tat java\n{text}"
    return cause_of(RuntimeError(lost), PROCESSOR, 7)


def test_the_driver_finds_the_error_of_a_task_in_sparks_text() -> None:
    text = "line one: of two\nline two"
    reported = told(FencedError(text))
    assert (FencedError, text, 7) == (type(reported), reported.message, reported.batch_id)
    other = RuntimeError("statelog.errors.FencedError: not from a task")
    assert cause_of(other, PROCESSOR, 7) is None
    crashed = cause_of(RuntimeError("Python worker exited unexpectedly (crashed)"), PROCESSOR, 7)
    assert isinstance(crashed, ProcessorError)
    assert "while object processed batch 7" in crashed.message


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("x: [SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job group 7a. SQLSTATE: XXKDA",
         "Job 3 cancelled part of cancelled job group 7a"),
        ("[SPARK_JOB_CANCELLED] Job 3 cancelled as part of cancellation of all jobs\n\tat org.x",
         "Job 3 cancelled as part of cancellation of all jobs"),
        ("[SPARK_JOB_CANCELLED] Job 3 cancelled because: of me", "Job 3 cancelled because: of me"),
    ],
)  # fmt: skip
def test_a_cancelled_job_is_reported_with_its_cause(text: str, cause: str) -> None:
    reported = cause_of(RuntimeError(text), PROCESSOR, 7)
    assert isinstance(reported, UnavailableError)
    assert f"was cancelled, but not by the query's stop(): {cause}. Nothing" in reported.message


class UsersError(FencedError):
    """An error that is not in statelog's tree itself."""


def test_an_error_of_a_users_class_is_reported_as_its_base() -> None:
    reported = told(UsersError("mine"))
    assert (type(reported), reported.message) == (FencedError, "mine")


def test_the_error_of_a_missing_object_says_what_to_do() -> None:
    reported = told(ObjectNotFoundError("no object shared/x"), "s3://bucket/state")
    assert isinstance(reported, CheckpointError)
    assert reported.message.startswith("the state in s3://bucket/state cannot be read: no object s")
    assert "statelog verify s3://bucket/state" in reported.message
    assert "checkpoint=<checkpoint id>" in reported.message


def test_the_processors_lines_are_bounded_and_leave_statelogs_out() -> None:
    def deep(level: int) -> None:
        if level:
            return shallow(level)
        return pickle.loads(b"nonsense")

    def shallow(level: int) -> None:
        return deep(level - 1)

    try:
        ends_of_process_are_errors(deep)(100)
    except Exception as error:
        lines = processor_lines(error)
    assert "lines omitted" in lines and "pickle.loads" in lines
    assert "worker/failures.py" not in lines
    assert len(lines.split("\n")) < 70
    assert processor_lines(None) == processor_lines(ValueError("never raised")) == ""


def test_only_the_thread_of_the_task_cannot_exit() -> None:
    real = os._exit

    @ends_of_process_are_errors
    def run(leave: Any) -> Any:
        return leave()

    with pytest.raises(ProcessExit, match=r"os\._exit\(3\)"):
        run(lambda: os._exit(3))
    with pytest.raises(SystemExit):
        run(lambda: sys.exit(3))
    assert os._exit is real

    def fork() -> int:
        child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(9))
        child.start()
        child.join(30)
        return child.exitcode or 0

    assert run(fork) == 9


def test_another_thread_may_end_the_process() -> None:
    code = (
        "import os, threading, time\n"
        "from statelog.spark.worker.failures import ends_of_process_are_errors\n"
        "def leave():\n"
        "    t = threading.Thread(target=lambda: os._exit(9))\n"
        "    t.start(); t.join(30)\n"
        "ends_of_process_are_errors(leave)()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9


def test_an_exit_is_described_by_its_call() -> None:
    assert described(SystemExit(3)).startswith("it called sys.exit(3), but a processor must not")
    assert described(ProcessExit("os._exit(1)")).startswith("it called os._exit(1), but")
    assert described(KeyError("k")) == "KeyError: 'k'"


def ack(**extras: object) -> TaskAck:
    return TaskAck(TaskPlace(0, KeyGroupRange(0, 127)), extras=extras)


def test_a_part_is_what_the_extension_answered_or_nothing() -> None:
    failed = FailedPart(2, "the first")
    assert failed is failures_of(ack(**{BAD_RECORDS: failed}))
    assert NO_FAILURE is failures_of(ack())
    assert part_of({}, "a", int) is None


@pytest.mark.parametrize("extras", [{BAD_RECORDS: ()}, {"side_outputs": {}}])
def test_a_part_of_another_type_is_not_taken_for_nothing(extras: dict[str, object]) -> None:
    with pytest.raises(InvariantError, match=f"extension {next(iter(extras))} sent a"):
        failures_of(ack(**extras))
        part_of(extras, "side_outputs", tuple)
