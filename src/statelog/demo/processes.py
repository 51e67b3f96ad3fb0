"""
A program with all its offspring: started in a session of its own, ended as a whole.

A Spark job is a tree of processes: the driver, its JVM, the Python daemon, the workers.  The daemon
makes a process group of its own and children of the dead get another parent, but all of them stay
in the session they were started in; that is how they are found, and they are ended by their ids.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_POLL_SECONDS: Final = 0.01
_PATIENCE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """
    One process.

    Args:
        pid: Its id.
        parent: Its parent's id.
        name: The name of its program.
    """

    pid: int
    parent: int
    name: str


def start_session(
    arguments: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """
    Start a program in a session of its own, its output in a file.

    Its standard input is a pipe that ends when this process does, however it ends.

    Args:
        arguments: The program and its arguments.
        log: Takes standard output and error.
        environment: All its environment variables.
        pass_fds: Open files it inherits.
    """
    with open(log, "ab") as output:
        return subprocess.Popen(
            list(arguments),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )


def processes_of_session(leader: int) -> list[ProcessInfo]:
    """Return the living processes of the session that *leader* began."""
    found = []
    for process in _all_processes():
        try:
            if os.getsid(process.pid) == leader:
                found.append(process)
        except OSError:
            continue  # it ended while we looked, or is not ours to ask about
    return found


def kill_session(leader: subprocess.Popen[bytes]) -> list[ProcessInfo]:
    """
    Send SIGKILL to every process of a session and wait until none is left.

    Args:
        leader: What `start_session` returned, not waited for yet (its id could be another's then).

    Returns:
        The processes that were killed.

    Blocks: Until they have ended, a few milliseconds.
    """
    killed: dict[int, ProcessInfo] = {}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    # Again and again: what is forked while the list is made shows in the next one.
    while living := processes_of_session(leader.pid):
        for process in living:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.setdefault(process.pid, process)  # with the parent it had when it lived
        if time.monotonic() > deadline:
            break  # one that is stuck in the kernel; it dies when it comes out
        time.sleep(_POLL_SECONDS)
    leader.wait()
    if leader.stdin is not None:
        leader.stdin.close()
    return list(killed.values())


def _all_processes() -> list[ProcessInfo]:
    """Return all living processes that can be seen."""
    if not (_PROC / "self" / "stat").exists():
        return _ask_ps()
    found = []
    for entry in os.listdir(_PROC):
        if not entry.isdigit():
            continue
        try:
            stat = (_PROC / entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # pid (name) state parent ...; the name may hold blanks and brackets
        head, _, rest = stat.rpartition(")")
        state, parent = rest.split()[:2]
        if state not in "ZX":
            found.append(ProcessInfo(int(entry), int(parent), head.partition("(")[2]))
    return found


def _ask_ps() -> list[ProcessInfo]:
    said = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat=,comm="], capture_output=True, text=True, check=False
    )
    found = []
    for line in said.stdout.splitlines():
        fields = line.split(None, 3)
        if len(fields) == 4 and not fields[2].startswith("Z"):
            name = os.path.basename(fields[3])
            found.append(ProcessInfo(int(fields[0]), int(fields[1]), name))
    return found
