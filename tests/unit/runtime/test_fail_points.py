"""Fail points: nothing unless armed, and then the end of the process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from statelog.errors import InvalidOptionsError
from statelog.runtime.fail_points import parse_fail_points

SOURCES = Path(__file__).parents[3] / "src"


@pytest.mark.parametrize(
    ("armed", "status", "said"),
    [
        ("here:3", -signal.SIGKILL, "0\n1\n2\n"),
        ("here:6", 0, "0\n1\n2\n3\n4\n"),
        ("elsewhere:1", 0, "0\n1\n2\n3\n4\n"),
        ("", 0, "0\n1\n2\n3\n4\n"),
    ],
)
def test_only_the_hit_that_is_armed_kills(armed, status, said):
    code = (
        "from statelog.runtime.fail_points import fail_point\n"
        "for index in range(5):\n"
        "    print(index, flush=True)\n"
        "    fail_point('here')\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "STATELOG_FAIL_POINTS": armed, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (status, said) == (died.returncode, died.stdout)


def test_several_points_may_be_armed():
    assert {"a": 1, "b": 20} == parse_fail_points("a:1, b:20")
    assert {} == parse_fail_points("")


@pytest.mark.parametrize("text", ["a", "a:0", ":1", "a:x"])
def test_nonsense_is_refused(text):
    with pytest.raises(InvalidOptionsError):
        parse_fail_points(text)
