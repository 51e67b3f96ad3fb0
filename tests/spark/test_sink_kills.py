"""Jobs killed between the delivery of a micro-batch and Spark's record of it, for every sink."""

import os
from pathlib import Path

import pytest
from tests.spark.sink_kills import SinkCampaign

KILLS = int(os.environ.get("STATELOG_SINK_KILLS", "100"))
"""Kills of the whole campaign."""
SEED = int(os.environ.get("STATELOG_SEED", "11"))
JOBS = (
    ("parquet-staged", "csv-direct", "table-staged", "delta-direct", "sqlite-staged"),
    ("parquet-direct", "json-staged", "table-direct", "delta-staged", "sqlite-direct"),
)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sinks", JOBS, ids=["one", "other"])
def test_every_row_is_written_once(tmp_path: Path, sinks: tuple[str, ...]) -> None:
    pytest.importorskip("deltalake")
    campaign = SinkCampaign(tmp_path, sinks, SEED)
    campaign.run(KILLS // len(JOBS))
    print(campaign.story)
