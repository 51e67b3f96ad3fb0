"""
SIGKILL between the delivery of a micro-batch and the record of its end, for every kind of sink.

`STATELOG_SINK_KILLS` is the number of kills over both jobs (100).  A kill is counted for each query
that it found in a micro-batch, so one process that dies is as many kills as it had such queries: see
`sink_kills`.  `STATELOG_CHAOS_SEED=7 make chaos` tries another course.

Delta is a stand-in that writes Delta's commits without Delta's package; see `delta_stand_in`.
"""

import os
from pathlib import Path

import pytest
from tests import evidence
from tests.chaos.sink_kills import BEFORE, BETWEEN, SinkCampaign

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("STATELOG_SINK_KILLS", "100"))
SEED = int(os.environ.get("STATELOG_CHAOS_SEED", "20261"))
SINKS = ("parquet", "json", "csv", "table", "delta", "sqlite")


@pytest.mark.parametrize("catalog", ["in-memory", "hive"])
def test_every_row_is_written_once_whenever_the_job_is_killed(catalog: str, tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    queries = [f"{sink}-{delivery}" for sink in SINKS for delivery in ("staged", "direct")]
    campaign = SinkCampaign(tmp_path, queries, catalog, SEED)
    name = "kills of queries with sinks"
    with evidence.campaign(name, f"{catalog} catalog", seeds=[SEED], spark=True) as record:
        campaign.run(KILLS // 2)
        print(campaign.story)
        if KILLS >= 100:
            assert all(campaign.found[name, BETWEEN] for name in queries), campaign.story
        record.runs, record.kills = 1, campaign.kills()
        record.counts.update({what: campaign.total(what) for what in (BEFORE, BETWEEN)})
        record.counts.update(
            {"conforming traces": len(queries), "events of traces": campaign.trace_events}
        )
        record.counts["processes killed"] = len(campaign.deaths)
