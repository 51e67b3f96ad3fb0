"""Run the demonstration's job as a process, and kill it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from statelog.demo.job import JobConfig
from statelog.demo.processes import ProcessInfo, kill_session, start_program
from statelog.errors import StatelogError
from statelog.runtime.closing import ClosesAtExit

PROGRAM = ("-m", "statelog.demo.program")
_LOG_LINES = 15

JsonObject = dict[str, Any]
"""A JSON object, such as a message of the job, whose kind is its `event`."""


class JobProcess(ClosesAtExit):
    """
    One run of the job.

    All its processes end with the `with` block at the latest.

    Args:
        config: The run.
        log: File to which the output of the processes is appended.
        program: Arguments of the interpreter that start the job.
        environment: Environment variables on top of this process's.
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
