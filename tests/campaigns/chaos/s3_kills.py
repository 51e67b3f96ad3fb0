"""The kills of the job on S3, through a proxy that fails a part of all requests."""

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.campaigns.chaos.kills import DIES, Campaign
from tests.campaigns.chaos.request_log import noting
from tests.support.servers.s3_faults import Mix, S3Proxy

from statelog.demo.job import JobConfig
from statelog.demo.process import JobProcess

_AGAIN = re.compile(r"; attempt \d+ follows in")
_REPEATED = re.compile(r" repeated_requests=(\d+) ")
TIMEOUT = "2s"
SLOW_S = 3.0
"""Later than the time-out of the client."""


@dataclass(kw_only=True)
class S3Campaign(Campaign):
    """
    A series of kills of `job.py` on a location on S3.

    Args:
        proxy: The proxy in front of the server.
        bucket: The bucket, which exists.
        mix: The faults of its requests.
    """

    proxy: S3Proxy
    bucket: str
    mix: Mix

    def __post_init__(self) -> None:
        super().__post_init__()
        self.location = f"s3://{self.bucket}/job"
        self.proxy.slow_s = SLOW_S
        self.batches = 0

    def _start(self, config: JobConfig, points: str) -> JobProcess:
        assert not points
        self.proxy.faults = self.mix
        return JobProcess(
            config,
            self.folder / "job.log",
            program=[str(Path(__file__).with_name(self.program))],
            **self.proxy.server.environment,
            AWS_TIMEOUT=TIMEOUT,
            **noting(self.requests),
        )

    def kill_after(self, batches: int, seconds: float) -> None:
        """
        Run the job, and kill all its processes some time after a number of micro-batches.

        A query that ends by itself raises `StatelogError`.
        """
        with self._start(self._config(DIES, verify=False), "") as job:
            for message in job.events():
                if message["event"] == "batch":
                    self.batches += 1
                    batches -= 1
                if not batches:
                    break
            time.sleep(seconds)
            assert job.process.poll() is None, f"the job had finished: {self.story}"
            job.kill()
        self.kills.append(f"after {self.batches} batches and {seconds:.2f} s")

    def finish(self) -> dict[str, Any]:
        """Run the job to its end; return its verdict."""
        verdict: dict[str, Any] = {}
        with self._start(self._config(DIES, verify=True), "") as job:
            for message in job.events():
                self.batches += message["event"] == "batch"
                verdict = message if message["event"] == "checked" else verdict
        assert 0 == job.process.returncode, self.story
        return verdict

    def check_output_and_state(self, verdict: dict[str, Any]) -> None:
        """
        Check what the last run said of the output and the state.

        A kill between Spark's list of files and its offsets puts two files into one micro-batch.
        """
        assert [] == verdict["differences"], self.story
        assert verdict["exact"]
        assert self.files - len(self.kills) <= verdict["batches"] <= self.files
        self.check_deliveries()

    def repeated_in_progress(self) -> int:
        """Return the sum of repeated requests in the `BatchProgress` lines of the driver's log."""
        return sum(map(int, _REPEATED.findall(self._log())))

    def retries(self) -> int:
        """Return how many requests the log of the driver says were sent again."""
        return len(_AGAIN.findall(self._log()))
