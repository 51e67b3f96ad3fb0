"""On clusters: state catches up wherever a task lands, whoever dies, and attempts count once."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.standalone import standalone_cluster
from tests.support.spark.processors import totals_of

from statelog.demo.java import prepare_environment
from statelog.demo.process import kill_session, start_program

ROOT = Path(__file__).parents[2]
# In a worker, when everything is written and before it is acknowledged: the first attempt of one
# task waits until a speculative one has come as far, so that both have written the same.
SLOW_TO_ANSWER = """
import os, sys, time

if "pyspark.daemon" in " ".join(sys.orig_argv):
    import statelog.spark.worker.task as task
    from pyspark import TaskContext

    def slow_at(name):
        slow = os.environ["STATELOG_SLOW_MARKER"]
        context = TaskContext.get()
        if name != "before-acknowledge" or context.partitionId() != 0:
            return
        if context.attemptNumber():
            open(slow + "-overtaken", "w").close()
        elif os.path.exists(slow):
            os.unlink(slow)
            for _ in range(1200):
                if os.path.exists(slow + "-overtaken"):
                    break
                time.sleep(0.1)

    task.fail_point = slow_at
"""


def environment(folder: Path) -> dict[str, str]:
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SLOW_TO_ANSWER)
    prepare_environment()
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run_scenario(
    master: str, folder: Path, variables: dict[str, str], delivery: str
) -> dict[str, Any]:
    log = folder / "scenario.log"
    program = [sys.executable, str(Path(__file__).with_name("scenario.py"))]
    process = start_program(
        [*program, master, str(folder), delivery], log=log, environment=variables
    )
    try:
        status = process.wait(800)
    finally:
        kill_session(process)
    lines = log.read_text(errors="replace").splitlines()
    assert 0 == status, "\n".join(lines[-60:])
    result: dict[str, Any] = json.loads(next(line for line in lines if line.startswith("{")))
    return result


def expected(batches: int) -> list[list[list[int]]]:
    batches_of_rows = ([(key, number + key) for key in range(40)] for number in range(batches))
    return [sorted(map(list, rows)) for rows in totals_of(batches_of_rows)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("delivery", "folders"), [("staged", {"dstl", "output"}), ("direct", {"dstl"})]
)
def test_a_master_with_two_workers(tmp_path, delivery, folders):
    """On the loopback interface, where they pass for two hosts."""
    variables = environment(tmp_path)
    with standalone_cluster(tmp_path, variables, workers=2) as url:
        story = run_scenario(url, tmp_path, variables, delivery)
    assert expected(8) == story["delivered"]
    assert [2] * 6 + [3, 1] == story["tasks"]
    assert story["died"]
    assert not any(name.startswith("again") for name in story["last orphans"])
    # A task on another executor has to read what it missed.
    assert any(catch_up["replayed"] for catch_up in story["catch up"])
    assert story["overtaken"]
    # The attempt that lost had written the same as the one that counts.  On a busy machine other
    # attempts may have been overtaken too.
    assert folders == set(story["orphans of speculation"])
