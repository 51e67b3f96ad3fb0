"""
Start a Spark Connect server on this machine, and end it with all its processes.

Run as a program with the arguments of spark-submit, it runs the server as its child, and ends it when
standard input ends, as with the process that started it.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from statelog.demo.java import prepare_environment
from statelog.demo.process import kill_session, processes_of_session, start_program
from statelog.errors import StatelogError
from statelog.runtime.closing import ClosesAtExit

_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_HOST: Final = "127.0.0.1"
_TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_START_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.1
_WORKER: Final = "foreach_batch_worker"
_PROC: Final = Path("/proc")


class ConnectServer(ClosesAtExit):
    """
    One server, which listens on this machine only, and takes sessions of this user only.

    A session shows a random token.  The server gets it as an environment variable, which no other user
    can read; it is on no command line.

    All its processes end with the `with` block at the latest.
    """

    def __init__(
        self,
        folder: Path,
        log: Path,
        *,
        cores: int = 2,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        prepare_environment()
        self.port = port or _free_port()
        self._token = secrets.token_urlsafe()
        self._log = log
        configuration = {
            "spark.connect.grpc.binding.address": _HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.ui.enabled": "false",
            "spark.driver.host": _HOST,
            "spark.driver.bindAddress": _HOST,
            "spark.sql.shuffle.partitions": str(cores),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            **(settings or {}),
        }
        options = [
            part for name, value in configuration.items() for part in ("--conf", f"{name}={value}")
        ]
        spark = _spark_home()
        self._process = start_program(
            [
                *(sys.executable, __file__),
                *(str(spark / "bin" / "spark-submit"), "--class", _CLASS),
                *("--master", f"local[{cores}]", "--driver-memory", "1g", *options),
            ],
            log=log,
            environment={
                **os.environ,
                # The interpreter of the process for foreachBatch; a session cannot choose it.
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_HOME": str(spark),
                "SPARK_LOCAL_IP": _HOST,
                _TOKEN: self._token,  # also for the server's own sessions in its Python processes
                **(environment or {}),
            },
        )

    def close(self) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """The address for `SparkSession.builder.remote`, with the token: keep it off command lines."""
        # By this name the client sends a token without TLS, if the server is on this machine.
        return f"sc://localhost:{self.port}/;token={self._token}"

    def wait(self) -> None:
        """Wait until the server accepts sessions."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex((_HOST, self.port)) == 0:
                    return
            time.sleep(_POLL_SECONDS)
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        raise StatelogError("\n".join(["the Spark Connect server did not start:", *lines]))

    def batch_workers(self) -> list[int]:
        """Return the ids of the processes that run micro-batches, one for each query."""
        workers = []
        for pid in processes_of_session(self._process.pid):
            try:
                command = (_PROC / str(pid) / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            if _WORKER in command.decode(errors="replace"):
                workers.append(pid)
        return workers

    def kill(self) -> dict[int, str]:
        return kill_session(self._process)


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def main(arguments: Sequence[str]) -> int:
    """Run the server until it or standard input ends."""
    server = subprocess.Popen(arguments, stdin=subprocess.DEVNULL)

    def end_with_parent() -> None:
        while os.read(0, 4096):
            pass
        server.send_signal(signal.SIGKILL)  # its Python processes end with it

    threading.Thread(target=end_with_parent, daemon=True).start()
    return server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
