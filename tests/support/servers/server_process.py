"""Servers that tests talk to: started on 127.0.0.1, bounded in time, ended by their process id."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
    process = subprocess.Popen(
        command(port),
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_up(process, port)
        yield S3Server(f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_until_up(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        assert process.poll() is None, f"the server ended with status {process.returncode}"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
            return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"the server did not come up within {START_S} s")
