"""What benchmarks say about the memory of Spark's Python workers."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench.harness.processes import WorkerMemory

_WORKER = """
import mmap, os, sys
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(handle, 8 << 20)
state = mmap.mmap(handle, 8 << 20)
os.unlink(sys.argv[1])
heap = bytearray(64 << 20)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="reads /proc, which only Linux has"
)
def test_the_memory_of_a_worker_and_its_files_without_names_are_seen(tmp_path: Path) -> None:
    memory = WorkerMemory(tmp_path)
    command = [sys.executable, "-c", _WORKER, str(tmp_path / "run"), "pyspark"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        found = {"local": 0, "RssAnon": 0}
        end = time.monotonic() + 60
        while time.monotonic() < end and not (found["local"] and found["RssAnon"] >= 64):
            time.sleep(0.05)
            found = memory.take()
        worker.communicate(timeout=20)
    memory.close()

    assert list(tmp_path.iterdir()) == []
    assert found["local"] == 8
    assert found["RssAnon"] >= 64
