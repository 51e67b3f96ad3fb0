"""
SIGKILL at every named point of a micro-batch.

Over both deliveries, with deltas inline and in files, with state in memory and on disk.

`STATELOG_CHAOS_SEED=7 make chaos` tries another course; the seed is printed.
"""

from pathlib import Path

import pytest
from tests.campaigns.chaos.kills import INLINE, NO_INLINE, SEED, Campaign, run_campaign
from tests.support.project import evidence

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


CASES = [
    ("staged", INLINE, "auto"),
    ("staged", NO_INLINE, "disk"),
    ("direct", INLINE, "disk"),
    ("direct", NO_INLINE, "auto"),
]


@pytest.mark.parametrize(("delivery", "inline_bytes", "backend"), CASES)
def test_state_and_output_are_exact_after_kills(
    delivery: str, inline_bytes: int, backend: str, tmp_path: Path
) -> None:
    seed = SEED + (delivery == "direct") * 2 + (inline_bytes == NO_INLINE)
    campaign = Campaign(tmp_path, seed, delivery, inline_bytes, backend)
    case = f"{delivery}, inline {inline_bytes}, {backend}"
    with evidence.campaign("kills of a job", case, seeds=[seed], spark=True) as record:
        run_campaign(campaign, deaths=5)
        campaign.record(record)
        record.commits = campaign.files
    assert len(campaign.kills) >= 8, campaign.story
