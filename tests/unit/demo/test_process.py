"""A session of processes, ended as a whole."""

import os
import sys
import time

from statelog.demo import process as processes
from statelog.demo.process import kill_session, processes_of_session, start_program

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


def wait_for(count: int, leader: int) -> None:
    deadline = time.monotonic() + 60
    while len(processes_of_session(leader)) < count:
        assert time.monotonic() < deadline, "the processes did not start"
        time.sleep(0.01)


def test_all_processes_of_a_session_are_killed(tmp_path):
    log = tmp_path / "log"
    leader = start_program([sys.executable, "-c", FAMILY], log=log, environment=os.environ)
    wait_for(3, leader.pid)
    assert leader.pid in processes_of_session(leader.pid)
    killed = kill_session(leader)
    assert 3 == len(killed)
    assert {"python"} == {name[:6] for name in killed.values()}
    assert -9 == leader.returncode
    assert {} == processes_of_session(leader.pid)
    assert "told" in log.read_text()


def test_a_session_that_has_ended_can_be_killed(tmp_path):
    leader = start_program(
        [sys.executable, "-c", "pass"], log=tmp_path / "log", environment=os.environ
    )
    leader.wait()
    assert {} == kill_session(leader)
    assert 0 == leader.returncode


def test_standard_input_ends_with_the_parent(tmp_path):
    program = "import sys; sys.stdin.read(); print('ended')"
    leader = start_program(
        [sys.executable, "-c", program], log=tmp_path / "log", environment=os.environ
    )
    assert leader.stdin is not None
    leader.stdin.close()
    assert 0 == leader.wait(20)
    kill_session(leader)


def test_without_proc_ps_is_asked(monkeypatch, tmp_path):
    ps = tmp_path / "ps"
    ps.write_text(
        f"#!/bin/sh\necho ' {os.getpid()}  S+  /usr/bin/python3 -c'\necho '5 Z  defunct'\n"
    )
    ps.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(processes, "_PROC", tmp_path / "none")
    assert {os.getpid(): "python3 -c"} == processes_of_session(os.getsid(0))
