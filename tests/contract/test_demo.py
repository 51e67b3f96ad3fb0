"""The demonstration, killed driver included, on S3 by its URL and the environment alone."""

import os
import subprocess
import sys

import pytest
from tests.support.servers.server_process import S3Server

from statelog.demo.java import prepare_environment


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["s3_server", "seaweedfs"])
def test_the_demonstration_on_s3(kind: str, request: pytest.FixtureRequest):
    server: S3Server = request.getfixturevalue(kind)
    server.make_bucket("demonstration")
    prepare_environment()
    command = [
        "demo",
        "--location",
        "s3a://demonstration/demo",
        "--orders",
        "1000",
        "--batches",
        "6",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "statelog.cli.main", *command],
        env={**os.environ, **server.environment},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "exact: no customer differs" in done.stdout
