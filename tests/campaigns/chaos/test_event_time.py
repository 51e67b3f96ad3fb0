"""
SIGKILL at every named point of a micro-batch on event time.

Timers, watermarks and late rows: of a job that is killed again and again all must be as of one left
in peace.  `STATELOG_CHAOS_SEED=7 make chaos` tries another course; the seed is printed.
"""

from pathlib import Path

import pytest
from tests.campaigns.chaos.event_kills import EventCampaign, run_event_campaign
from tests.campaigns.chaos.kills import INLINE, NO_INLINE, SEED
from tests.support.project import evidence

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CASES = [("staged", INLINE, "memory"), ("staged", NO_INLINE, "disk"), ("direct", INLINE, "auto")]


@pytest.fixture(scope="module")
def in_peace(tmp_path_factory: pytest.TempPathFactory) -> EventCampaign:
    campaign = EventCampaign(tmp_path_factory.mktemp("peace"), SEED, data_seed=SEED)
    campaign.run_in_peace()
    campaign.check({})
    return campaign


@pytest.mark.parametrize("case", range(len(CASES)), ids=["-".join(map(str, c)) for c in CASES])
def test_timers_are_exact_after_kills(case: int, in_peace: EventCampaign, tmp_path: Path) -> None:
    delivery, inline_bytes, backend = CASES[case]
    campaign = EventCampaign(tmp_path, SEED + case, delivery, inline_bytes, backend, data_seed=SEED)
    name = "kills of a job on event time"
    seeds = [campaign.seed]
    with evidence.campaign(
        name, "-".join(map(str, CASES[case])), seeds=seeds, spark=True
    ) as record:
        run_event_campaign(campaign)
        assert [rows for _, rows in in_peace.output()] == [rows for _, rows in campaign.output()]
        campaign.record(record)
        record.commits = campaign.committed()
    assert len(campaign.kills) >= 6, campaign.story
    assert campaign.kills_in_ticks, campaign.story
