"""A bug in production becomes a failing test, as a user writes it."""

import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from tests.house.sources import ROOT

from statelog.errors import UsageError
from statelog.spark import Record

FRAUD = ROOT / "examples" / "fraud.py"
RULE = "row.amount > LARGE and at <= armed[0]"
RECORD = "spark.statelog.record.keys"


def command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a user does, in a folder of his own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def payments(folder: Path, number: int, *lines: tuple[str, str, float]) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(
        json.dumps({"account": account, "at": f"2024-05-01T{time}Z", "amount": amount}) + "\n"
        for account, time, amount in lines
    )
    (folder / f"{number}.json").write_text(text, encoding="utf-8")


def run_example(program: Path, folder: Path) -> None:
    main = runpy.run_path(str(program), run_name="__main__example")["main"]
    main.__globals__["__name__"] = "__main__"  # as if typed: workers get it by value
    main(str(folder / "in"), str(folder / "out"), str(folder / "checkpoint"))


@pytest.fixture
def fraud(spark, tmp_path):
    """Return a user's folder, in which the fraud example records account a."""
    spark.conf.set(RECORD, '["a"]')
    try:
        yield tmp_path
    finally:
        spark.conf.unset(RECORD)


def planted(folder: Path, rule: str) -> Path:
    """Write the example with another comparison."""
    text = FRAUD.read_text(encoding="utf-8")
    assert RULE in text
    program = folder / "fraud.py"
    program.write_text(text.replace(RULE, rule), encoding="utf-8")
    return program


TEST = """
from fraud import FraudRule
from statelog.spark import replay


def test_account_a():
    steps = replay({location!r}, "a", processor=FraudRule())
    assert [] == [step for step in steps if step.differences]
"""


def test_a_planted_bug_fails_a_test_of_three_lines(fraud):
    program = planted(fraud, RULE)
    payments(fraud / "in", 1, ("a", "10:00:00", 0.5), ("b", "10:00:00", 0.5))
    run_example(program, fraud)
    payments(fraud / "in", 2, ("a", "10:00:40", 900.0), ("b", "10:00:20", 20.0))
    run_example(program, fraud)
    location = str(fraud / "checkpoint" / "statelog")
    words = ("statelog", "replay", location, "a", "--processor", "fraud:FraudRule")

    same = command(*words, folder=fraud)
    assert (0, "") == (same.returncode, same.stderr)
    assert "no difference" in same.stdout

    planted(fraud, "row.amount > LARGE and at >= armed[0]")  # the sides are swapped
    different = command(*words, folder=fraud)
    assert (1, "") == (different.returncode, different.stderr)
    assert "output differs" in different.stdout
    assert "amount=900.0" in different.stdout

    (fraud / "test_fraud.py").write_text(TEST.format(location=location), encoding="utf-8")
    pytest_run = ("pytest", "-q", "-p", "no:cacheprovider", "test_fraud.py")
    failing = command(*pytest_run, folder=fraud)
    assert 1 == failing.returncode
    assert "1 failed" in failing.stdout
    planted(fraud, RULE)
    assert 0 == command(*pytest_run, folder=fraud).returncode


def test_a_key_that_raised_is_replayed_by_the_command_in_the_error(fraud):
    program = planted(fraud, "row.amount > LARGE and at <= armed")  # a number and a tuple
    payments(fraud / "in", 1, ("a", "10:00:00", 0.5))
    run_example(program, fraud)
    payments(fraud / "in", 2, ("a", "10:00:40", 900.0), ("b", "10:00:20", 20.0))
    with pytest.raises(StreamingQueryException) as raised:
        run_example(program, fraud)
    message = str(raised.value)
    line = next(line for line in message.splitlines() if "Replay it: " in line)
    words = shlex.split(line.partition("Replay it: ")[2])
    assert ["statelog", "replay", "--processor", f"{program}:FraudRule"] == words[:4]

    failing = command(*words, folder=fraud)
    assert 1 == failing.returncode, failing.stderr
    assert "fails as recorded" in failing.stdout
    planted(fraud, RULE)
    corrected = command(*words, folder=fraud)
    assert "fails as recorded" not in corrected.stdout
    assert "TypeError" in corrected.stdout  # what was recorded


def test_a_key_of_no_operator_is_refused_at_the_start(job):
    job.source.add([(1, 1)])
    with pytest.raises(UsageError, match="record: key column 'key' takes int64"):
        job.run(record=Record(keys=["x"]))
