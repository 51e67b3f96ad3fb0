"""The process is killed around the commit, on a real disk; the next one continues."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.locations.checkpoints import read_log, small_checkpoint, started

from statelog.store import open_store

ROOT = Path(__file__).resolve().parents[3]
JOB = """
import sys
from tests.support.locations.checkpoints import small_checkpoint, started
from statelog.store import open_store
job = started(open_store(sys.argv[1]), "killed")
for checkpoint_id in range(1, 11):
    small_checkpoint(job, checkpoint_id)
    job.clean_up()
"""


@pytest.mark.parametrize(
    ("fail_point", "survives"),
    [("before-commit:4", 3), ("after-commit:4", 4), ("after-commit:1", 1)],
)
def test_a_killed_owner_leaves_whole_checkpoints(tmp_path, fail_point, survives):
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    killed = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "STATELOG_FAIL_POINTS": fail_point},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    store = open_store(str(tmp_path))
    successor = started(store, "successor")
    assert successor.latest is not None
    assert successor.latest.checkpoint_id == survives
    assert len(read_log(store, successor.latest.log)) == 3 * survives
    small_checkpoint(successor, survives + 2)
    assert successor.clean_up().failed == ()
