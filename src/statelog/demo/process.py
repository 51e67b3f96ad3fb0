"""
Run the demonstration's job as a process, and kill it with all its child processes.

A Spark job is a tree of processes: the driver, its JVM, the Python daemon, the workers.  The daemon
makes a process group of its own, and orphaned children get another parent, but all of them stay in
the session of the program.  So they are found by their session and ended by their ids.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from statelog.demo.job import JobConfig
from statelog.errors import StatelogError
from statelog.model import JsonObject
from statelog.runtime.closing import ClosesAtExit

_PROC: Final = Path("/proc")
_POLL_SECONDS: Final = 0.01
_PATIENCE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process."""

    pid: int
    parent: int
    name: str


def start_program(
    arguments: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    in_session: bool = False,
) -> subprocess.Popen[bytes]:
    """
    Start a program in a session of its own, or in this process's.

    Its standard input is a pipe that ends when this process ends, also by a signal.

    Args:
        arguments: The program and its arguments.
        log: File for standard output and error.
        environment: All its environment variables.
        pass_fds: Open files it inherits.
        in_session: Whether it stays in the session of this process.
    """
    with open(log, "ab") as output:
        return subprocess.Popen(
            list(arguments),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            pass_fds=tuple(pass_fds),
            start_new_session=not in_session,
        )


def processes_of_session(leader: int) -> list[ProcessInfo]:
    """Return the running processes of the session of *leader*."""
    processes = []
    for process in _all_processes():
        try:
            if os.getsid(process.pid) == leader:
                processes.append(process)
        except OSError:
            continue  # it has ended, or this process may not read it
    return processes


def kill_session(leader: subprocess.Popen[bytes]) -> list[ProcessInfo]:
    """
    Kill every process of a session and wait for their end.

    Args:
        leader: The process of `start_session`, not waited for, because its id may be reused then.

    Returns:
        The processes that were killed.

    Blocks: Until they have ended, a few milliseconds.
    """
    killed: dict[int, ProcessInfo] = {}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    # Repeated: a process forked while the list is made is in the next list.
    while running := processes_of_session(leader.pid):
        for process in running:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.setdefault(process.pid, process)  # with its parent before the kill
        if time.monotonic() > deadline:
            break  # a process that waits in the kernel ends after that
        time.sleep(_POLL_SECONDS)
    leader.wait()
    if leader.stdin is not None:
        leader.stdin.close()
    return list(killed.values())


def _all_processes() -> list[ProcessInfo]:
    """Return all running processes that this process may read."""
    if not (_PROC / "self" / "stat").exists():
        return _ask_ps()
    processes = []
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
            processes.append(ProcessInfo(int(entry), int(parent), head.partition("(")[2]))
    return processes


def _ask_ps() -> list[ProcessInfo]:
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat=,comm="], capture_output=True, text=True, check=False
    )
    processes = []
    for line in listing.stdout.splitlines():
        fields = line.split(None, 3)
        if len(fields) == 4 and not fields[2].startswith("Z"):
            name = os.path.basename(fields[3])
            processes.append(ProcessInfo(int(fields[0]), int(fields[1]), name))
    return processes


PROGRAM = ("-m", "statelog.demo.program")
_LOG_LINES = 15


class JobProcess(ClosesAtExit):
    """
    One run of the job.

    All its processes end with the `with` block at the latest.
    """

    def __init__(
        self,
        config: JobConfig,
        log: Path,
        *,
        program: Sequence[str] = PROGRAM,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        self._pipe, theirs = os.pipe()
        try:
            self._process: subprocess.Popen[bytes] = start_program(
                [sys.executable, *program, msgspec.json.encode(config).decode(), str(theirs)],
                log=log,
                environment={**os.environ, **(environment or {})},
                pass_fds=(theirs,),
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)
        self._ended = False

    def close(self) -> None:
        """Kill every process of the job."""
        self.kill()

    @property
    def pid(self) -> int:
        """Id of the driver's process, and of its session."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """
        Exit status of the driver, negative for a signal.

        None while it runs.
        """
        return self._process.returncode

    def events(self, poll_seconds: float | None = None) -> Iterator[JsonObject]:
        """
        Yield the messages of the job until its driver has ended.

        Args:
            poll_seconds: Yield an empty message after this time without one; None to wait.

        Raises:
            StatelogError: The job ended with an error (not by a signal); the message has the last
                lines of its log.

        Blocks: For the job.
        """
        failure = ""
        pending = b""
        while True:
            ready, _, _ = select.select([self._pipe], [], [], poll_seconds)
            if not ready:
                yield {}
                continue
            data = os.read(self._pipe, 65536)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                message: JsonObject = msgspec.json.decode(line)
                if message["event"] == "failed":
                    failure = message["message"]
                else:
                    yield message
        # Its other processes (a JVM that is about to end) are ended too.
        status = self._wait()
        if status > 0 or failure:
            raise StatelogError(self._describe(failure, status), exit_status=status)

    def _wait(self) -> int:
        """Wait for the driver, kill the rest, and return its status."""
        if hasattr(os, "waitid"):  # does not reap it, so that no other process gets its id
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        self.kill()
        return self._process.returncode

    def kill(self) -> list[ProcessInfo]:
        """Kill every process of the job, and return them."""
        if self._ended:
            return []
        killed = kill_session(self._process)
        os.close(self._pipe)
        self._ended = True
        return killed

    def _describe(self, failure: str, status: int) -> str:
        first, _, _ = failure.partition("\n")
        what = f"the job failed: {first}" if first else f"the job ended with status {status}"
        tail = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join([what, "the last lines of its log:", *(f"  {line}" for line in tail)])
