"""The demonstration, killed driver included, on S3 by its URL and the environment alone."""

import os
import subprocess
import sys

import pytest
from tests.servers import S3Server

from statelog.demo.java import prepare_environment


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demonstration_on_s3(s3_server: S3Server, s3_bucket: str):
    prepare_environment()
    command = [
        "demo",
        "--location",
        f"s3a://{s3_bucket}/demo",
        "--orders",
        "1000",
        "--batches",
        "6",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "statelog.cli.main", *command],
        env={**os.environ, **s3_server.environment},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "exact: no customer differs" in done.stdout
