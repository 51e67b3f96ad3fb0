"""Servers that tests talk to: started on 127.0.0.1, bounded in time, ended by their process id."""

import http.client
import http.server
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

START_S = 60
CONFLICT = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>ConditionalRequestConflict</Code><Message>The conditional request cannot succeed due to \
a conflicting operation against this resource.</Message><RequestId>1</RequestId></Error>"""
"""The body of S3's 409 to a conditional put while another request for the name is under way."""
KEY, SECRET = "test-access-key", "test-secret-key"


@dataclass(frozen=True)
class S3Server:
    """A running S3 server."""

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
        lambda port: [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        environment,
    ) as server:
        yield server


@contextmanager
def running_server(command, environment: Mapping[str, str] | None = None) -> Iterator[S3Server]:
    """Run `command(port)` until the block ends."""
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


@dataclass
class Exchange:
    """One request as the proxy saw it."""

    method: str
    path: str
    conditional: bool


class S3Proxy:
    """
    Passes requests on to an S3 server, and does wrong what servers and networks do wrong.

    `loses_answer` says for which requests the answer is lost after the server has acted;
    `ignores_conditions` makes it a server that writes a name twice; `conflicts` says which requests
    get S3's 409 and do not reach the server.
    """

    def __init__(self, server: S3Server) -> None:
        self.exchanges: list[Exchange] = []
        self.ignores_conditions = False
        self.loses_answer: Callable[[Exchange], bool] = lambda exchange: False
        self.conflicts: Callable[[Exchange], bool] = lambda exchange: False
        proxy, target = self, server.endpoint.removeprefix("http://")

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = dict(self.headers.items())
                conditional = "if-none-match" in {name.lower() for name in headers}
                exchange = Exchange(self.command, self.path, conditional)
                proxy.exchanges.append(exchange)
                if proxy.conflicts(exchange):
                    self.send_response(409)
                    self.send_header("content-type", "application/xml")
                    self.send_header("content-length", str(len(CONFLICT)))
                    self.end_headers()
                    self.wfile.write(CONFLICT)
                    return
                if proxy.ignores_conditions:
                    headers = {k: v for k, v in headers.items() if k.lower() != "if-none-match"}
                connection = http.client.HTTPConnection(target, timeout=30)
                try:
                    connection.request(self.command, self.path, body, headers)
                    answer = connection.getresponse()
                    content = answer.read()
                finally:
                    connection.close()
                if proxy.loses_answer(exchange):
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = answer.getheader("content-length") or str(len(content))
                self.send_header("content-length", length)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

            def log_message(self, format: str, *arguments: object) -> None:
                """Tests say what went wrong, not the proxy."""

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.server = S3Server(f"http://127.0.0.1:{self._http.server_port}", os.getpid())
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    def __enter__(self) -> "S3Proxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(60)

    def count(self, method: str, part: str = "") -> int:
        return sum(each.method == method and part in each.path for each in self.exchanges)
