"""
A fifth of all requests to S3 fails, in eight ways, and the job is killed.

`STATELOG_CHAOS_SEED=7 make chaos` tries another course; the seed is printed.
"""

import os
from pathlib import Path

import pytest
from tests.chaos.s3_kills import S3Campaign
from tests.s3_faults import EIGHT, S3Proxy, no_fault
from tests.servers import moto_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEED = int(os.environ.get("STATELOG_CHAOS_SEED", "20261"))
FILES = 60
KILLS = 5


def test_a_job_whose_requests_fail_is_exact_and_never_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with moto_server() as server, S3Proxy(server) as proxy:
        server.make_bucket("chaos")
        campaign = S3Campaign(tmp_path, SEED, files=FILES, proxy=proxy, bucket="chaos")
        print(f"\nseed {SEED}")
        for _ in range(KILLS):
            campaign.kill_after(campaign.chance.randint(6, 10), campaign.chance.uniform(0, 1.5))
        verdict = campaign.finish()
        failed = campaign.mix.drawn
        print(campaign.story)
        print(f"{len(proxy.exchanges)} requests, {sum(failed.values())} failed: {dict(failed)}")
        print(f"{campaign.batches} batches, {campaign.retries()} retries in the log of the driver")
        assert KILLS == len(campaign.kills)
        assert {fault.value for fault in EIGHT} == set(failed), "a campaign of all faults"
        assert sum(failed.values()) > len(proxy.exchanges) / 10
        proxy.faults = no_fault
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        campaign.check(verdict)
