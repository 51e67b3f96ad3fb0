"""A few kills of real processes; `make chaos` makes many."""

from pathlib import Path

from tests.chaos.kills import NO_INLINE, Campaign


def test_a_job_that_dies_thrice_is_exact(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, seed=11, inline_bytes=NO_INLINE, files=7)
    campaign.die_at("after-commit", 2)
    campaign.die_at("between-uploads", 2)
    verdict = campaign.finish_while_workers_die("after-upload", 3)
    campaign.check(verdict)
    assert len(campaign.kills) >= 3, campaign.story
