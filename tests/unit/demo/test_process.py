"""A session of processes is ended as a whole; order lines come from a seed, in ordered files."""

import csv
import hashlib
import os
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest

from statelog.demo import process as processes
from statelog.demo.process import kill_session, processes_of_session, start_program

pytest.importorskip("pyspark")
from statelog.demo.job import ORDER_LINES
from statelog.demo.process import write_orders

# A child in a process group of its own, and a grandchild whose parent is gone.
FAMILY = """
import os, time
if os.fork() == 0:
    os.setpgid(0, 0)
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    time.sleep(60)
print("told", flush=True)
time.sleep(60)
"""


def started(code: str, log: Path) -> subprocess.Popen:
    return start_program([sys.executable, "-c", code], log=log, environment=os.environ)


def wait_for(count: int, leader: int) -> None:
    deadline = time.monotonic() + 60
    while len(processes_of_session(leader)) < count:
        assert time.monotonic() < deadline, "the processes did not start"
        time.sleep(0.01)


def test_all_processes_of_a_session_are_killed(tmp_path):
    log = tmp_path / "log"
    leader = started(FAMILY, log)
    wait_for(3, leader.pid)
    assert leader.pid in processes_of_session(leader.pid)
    killed = kill_session(leader)
    assert 3 == len(killed)
    assert {"python"} == {name[:6] for name in killed.values()}
    assert -9 == leader.returncode
    assert {} == processes_of_session(leader.pid)
    assert "told" in log.read_text()


def test_a_session_that_has_ended_can_be_killed(tmp_path):
    leader = started("pass", tmp_path / "log")
    leader.wait()
    assert {} == kill_session(leader)
    assert 0 == leader.returncode


def test_standard_input_ends_with_the_parent(tmp_path):
    program = "import sys; sys.stdin.read(); print('ended')"
    leader = started(program, tmp_path / "log")
    leader.stdin.close()
    assert 0 == leader.wait(20)
    kill_session(leader)


def test_without_proc_ps_is_asked(monkeypatch, tmp_path):
    ps = tmp_path / "ps"
    lines = f" {os.getpid()}  S+  /usr/bin/python3 -c\n5 Z  defunct"
    ps.write_text(f"#!/bin/sh\necho '{lines}'\n")
    ps.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(processes, "_PROC", tmp_path / "none")
    assert {os.getpid(): "python3 -c"} == processes_of_session(os.getsid(0))


COLUMNS = [column.split()[0] for column in ORDER_LINES.split(", ")]


def lines_of(folder: Path) -> list[dict[str, str]]:
    rows = []
    for file in sorted(folder.glob("*.csv")):
        with open(file, newline="", encoding="utf-8") as opened:
            rows += list(csv.DictReader(opened, COLUMNS, strict=True))
    return rows


def digest(folder: Path) -> str:
    content = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    return hashlib.sha256(content).hexdigest()


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_orders(tmp_path / name, orders=200, days=24, seed=seed)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")
    # On every machine and for ever: what is measured on it can be compared.
    assert digest(tmp_path / "a").startswith("f786495e")


def test_the_lines_have_what_makes_real_ones_hard(tmp_path):
    write_orders(tmp_path / "in", orders=1500, days=12)
    rows = lines_of(tmp_path / "in")
    assert 12 == len(list((tmp_path / "in").iterdir()))
    assert set(COLUMNS) == set(rows[0])
    assert 1500 == len({row["invoice"] for row in rows})
    returned = [row for row in rows if int(row["quantity"]) < 0]
    assert 0.03 < len(returned) / len(rows) < 0.15
    assert {3} == {-int(Decimal(row["price"]).as_tuple().exponent) for row in rows}
    times = [row["ordered_at"] for row in rows]
    assert sorted(times) == times
    orders: dict[str, set[str]] = {}
    countries: dict[str, set[str]] = {}
    for row in rows:
        orders.setdefault(row["customer"], set()).add(row["invoice"])
        countries.setdefault(row["customer"], set()).add(row["country"])
    counts = sorted(map(len, orders.values()))
    assert 1 == counts[0] < counts[-1] // 20
    assert any(len(seen) > 1 for seen in countries.values())


def test_the_files_are_in_the_order_of_names_by_their_times(tmp_path):
    write_orders(tmp_path / "in", orders=20, days=5)
    files = sorted((tmp_path / "in").iterdir(), key=lambda file: file.stat().st_mtime)
    assert sorted(files) == files
    assert 5 == len({file.stat().st_mtime for file in files})
