"""
Run the demonstration's job as a process, and kill it with all its child processes.

A Spark job is a tree of processes: the driver, its JVM, the Python daemon, the workers.  The daemon
makes its own process group, and orphaned children get another parent, but all of them stay in the
session of the program.  So they are found by their session and ended by their ids.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from statelog.demo.job import JobConfig
from statelog.errors import StatelogError
from statelog.model import JsonObject
from statelog.runtime.closing import ClosesAtExit

PROGRAM: Final = ("-m", "statelog.demo.program")
_PROC: Final = Path("/proc")
_POLL_SECONDS: Final = 0.01
_PATIENCE_SECONDS: Final = 10.0
_LOG_LINES: Final = 15


def start_program(
    arguments: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    stdout: int | None = None,
) -> subprocess.Popen[bytes]:
    """
    Start a program in a new session.

    Its standard input is a pipe that ends when this process ends, also by a signal.
    """
    with open(log, "ab") as output:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=output if stdout is None else stdout,
            stderr=output,
            env=environment,
            start_new_session=True,
        )


def processes_of_session(leader: int) -> dict[int, str]:
    """Return ids and names of the running processes of the session of *leader*."""
    processes = {}
    for pid, name in _running_processes():
        try:
            if os.getsid(pid) == leader:
                processes[pid] = name
        except OSError:
            continue  # it has ended, or this process may not read it
    return processes


def kill_session(leader: subprocess.Popen[bytes]) -> dict[int, str]:
    """Kill every process of a session, wait for their end, and return their ids and names."""
    killed: dict[int, str] = {}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    # Repeated: a process forked while the list is made is in the next list.
    while running := processes_of_session(leader.pid):
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= running
        if time.monotonic() > deadline:
            break  # a process that waits in the kernel ends after that
        time.sleep(_POLL_SECONDS)
    leader.communicate()  # closes the pipes, and waits
    return killed


def _running_processes() -> Iterator[tuple[int, str]]:
    """Yield the processes of this machine that this process may read, without zombies."""
    if not (_PROC / "self" / "stat").exists():
        command = ["ps", "-A", "-o", "pid=,stat=,comm="]
        listing = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in listing.stdout.splitlines():
            pid, state, *name = line.split(None, 2)
            if not state.startswith("Z"):
                yield int(pid), os.path.basename("".join(name))
        return
    for pid in filter(str.isdigit, os.listdir(_PROC)):
        try:
            stat = (_PROC / pid / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # pid (name) state parent ...; the name may contain blanks and brackets
        head, _, rest = stat.rpartition(") ")
        if rest[0] not in "ZX":
            yield int(pid), head.partition("(")[2]


class JobProcess(ClosesAtExit):
    """
    One run of the job.

    All its processes end with the `with` block at the latest; `process` is the driver, the leader
    of their session.
    """

    def __init__(
        self, config: JobConfig, log: Path, program: Sequence[str] = PROGRAM, **environment: str
    ) -> None:
        self._log = log
        self.process = start_program(
            [sys.executable, *program, msgspec.json.encode(config).decode()],
            log=log,
            environment={**os.environ, **environment},
            stdout=subprocess.PIPE,
        )

    def events(self) -> Iterator[JsonObject]:
        """Yield the messages of the job until its driver has ended."""
        assert self.process.stdout is not None
        failure = ""
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # a kill may truncate the last message
                message: JsonObject = msgspec.json.decode(line)
                if message["event"] == "failed":
                    failure = message["message"].partition("\n")[0]
                else:
                    yield message
        status = self.process.wait()
        self.kill()  # a JVM may be about to end
        if status > 0:
            what = f"failed: {failure}" if failure else f"ended with status {status}"
            text = self._log.read_text(encoding="utf-8", errors="replace")
            tail = "\n  ".join(text.splitlines()[-_LOG_LINES:])
            raise StatelogError(f"the job {what}\nthe last lines of its log:\n  {tail}")

    def kill(self) -> dict[int, str]:
        """
        Kill every process of the job, and return their ids and names.

        Further calls return none.
        """
        return kill_session(self.process)

    def close(self) -> None:
        """Kill every process of the job."""
        self.kill()
