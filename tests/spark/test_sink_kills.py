"""Jobs killed between the delivery of a micro-batch and Spark's record of it, for every sink."""

import os
from pathlib import Path

import pytest
from tests.spark.sink_kills import SinkCampaign

KILLS = int(os.environ.get("STATELOG_SINK_KILLS", "100"))
"""Kills of the whole campaign; they are spread over the sinks."""
SHARES = (
    ("parquet", "staged", 2),
    ("parquet", "direct", 2),
    ("json", "staged", 1),
    ("csv", "direct", 1),
    ("table", "staged", 2),
    ("table", "direct", 1),
    ("delta", "staged", 1),
    ("delta", "direct", 1),
    ("sqlite", "staged", 1),
)
_ALL = sum(share for _, _, share in SHARES)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("sink", "delivery", "share"),
    SHARES,
    ids=[f"{sink}-{delivery}" for sink, delivery, _ in SHARES],
)
def test_every_row_is_written_once(tmp_path: Path, sink: str, delivery: str, share: int) -> None:
    if sink == "delta":
        pytest.importorskip("deltalake")
    campaign = SinkCampaign(tmp_path, sink, delivery, seed=int(os.environ.get("SEED", "11")))
    campaign.run(-(-KILLS * share // _ALL))
    print(f"\n{len(campaign.kills)} kills: {campaign.story}")
