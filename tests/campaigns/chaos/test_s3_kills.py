"""
A fifth of all requests to S3 fails, in eight ways, or reads are wrong, and the job is killed.

`STATELOG_CHAOS_SEED=7 make chaos` tries another course; the seed is printed.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.campaigns.chaos.s3_kills import S3Campaign
from tests.support.project import evidence
from tests.support.servers.real_stores import seaweedfs_server
from tests.support.servers.s3_faults import EIGHT, Fault, Mix, S3Proxy, no_fault
from tests.support.servers.server_process import S3Server, moto_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEED = int(os.environ.get("STATELOG_CHAOS_SEED", "20261"))
WRONG_BYTES = (Fault.FLIPPED, Fault.SHORTENED)


@pytest.mark.parametrize(
    ("run_server", "kinds", "rate", "files", "kills"),
    [
        (moto_server, EIGHT, 0.2, 60, 5),
        (moto_server, WRONG_BYTES, 0.1, 24, 2),
        (seaweedfs_server, EIGHT, 0.2, 60, 5),
    ],
    ids=["eight faults", "wrong bytes", "eight faults on SeaweedFS"],
)
def test_a_job_whose_requests_fail_is_exact_and_never_ends_by_itself(
    run_server: Callable[[], AbstractContextManager[S3Server]],
    kinds: tuple[Fault, ...],
    rate: float,
    files: int,
    kills: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = evidence.server("moto" if run_server is moto_server else "SeaweedFS")
    case = f"{name.split()[0]}, {len(kinds)} kinds of faults"
    with (
        evidence.campaign(
            "kills of a job on S3 under faults", case, seeds=[SEED], servers=[name], spark=True
        ) as record,
        run_server() as server,
        S3Proxy(server) as proxy,
    ):
        server.make_bucket("chaos")
        mix = Mix(rate, kinds, seed=SEED, forbidden_s=0.5)
        campaign = S3Campaign(tmp_path, SEED, files=files, proxy=proxy, bucket="chaos", mix=mix)
        print(f"\nseed {SEED}")
        for _ in range(kills):
            campaign.kill_after(campaign.chance.randint(6, 10), campaign.chance.uniform(0, 1.5))
        verdict = campaign.finish()
        failed = campaign.mix.drawn
        print(campaign.story)
        print(f"{len(proxy.exchanges)} requests, {sum(failed.values())} failed: {dict(failed)}")
        print(f"{campaign.batches} batches, {campaign.retries()} retries in the log of the driver")
        print(f"{campaign.repeated_in_progress()} of them in BatchProgress")
        assert campaign.repeated_in_progress() > 0
        assert kills == len(campaign.kills)
        assert {fault.value for fault in kinds} == set(failed), "a campaign of all faults"
        assert sum(failed.values()) > len(proxy.exchanges) * rate / 2
        proxy.faults = no_fault
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        campaign.check(verdict)
        campaign.record(record)
        record.commits = campaign.batches
        record.store_faults.update(failed)
        record.counts["requests"] += len(proxy.exchanges)
