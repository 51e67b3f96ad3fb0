"""Servers that tests talk to: started on 127.0.0.1, bounded in time, ended by their process id."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

START_S = 60
KEY, SECRET = "test-access-key", "test-secret-key"


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    pid: int

    @property
    def options(self) -> dict[str, Any]:
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "max_retries": 2,
        }

    @property
    def environment(self) -> dict[str, str]:
        """What a user would export; AWS_ALLOW_HTTP is left out on purpose."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200

    def ask_for_credentials(self) -> None:
        """From now on refuse keys that this server has not handed out."""
        request = urllib.request.Request(
            f"{self.endpoint}/moto-api/reset-auth",
            data=b"0",
            headers={"content-type": "text/plain"},
            method="POST",
        )
        urllib.request.urlopen(request, timeout=30).close()


@contextmanager
def moto_server(environment: Mapping[str, str] | None = None) -> Iterator[S3Server]:
    """Run an S3 server whose objects live in its memory; skip where it is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("moto", "flask", "flask_cors")):
        pytest.skip("the S3 server of the tests is not installed: pip install 'moto[server]'")
    with running_server(
        lambda port: [
            sys.executable,
            "-P",
            str(Path(__file__).with_name("s3_server.py")),
            str(port),
        ],
        environment,
    ) as server:
        yield server


@contextmanager
def running_server(command, environment: Mapping[str, str] | None = None) -> Iterator[S3Server]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with running_process(command(port), partial(answers, url), environment) as process:
        yield S3Server(url, process.pid)


@contextmanager
def running_process(
    command: Sequence[str],
    is_up: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
    end: signal.Signals = signal.SIGTERM,
    **options: Any,
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server from when it is up until the block ends."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **options,
    )
    try:
        until = time.monotonic() + START_S
        while not is_up():
            assert process.poll() is None, f"the server ended with status {process.returncode}"
            assert time.monotonic() < until, f"the server did not come up within {START_S} s"
            time.sleep(0.05)
        yield process
    finally:
        process.send_signal(end)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def answers(url: str) -> bool:
    """Return whether a server answers a request, if with an error."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def listens(port: int) -> bool:
    """Return whether a server on this machine takes connections."""
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
