"""A few kills of real processes; `make chaos` makes many."""

from tests.campaigns.chaos.kills import NO_INLINE, Campaign


def test_a_job_whose_driver_and_workers_die_is_exact(tmp_path):
    campaign = Campaign(tmp_path, seed=11, inline_bytes=NO_INLINE, files=8)
    campaign.die_at("after-commit", 2)
    campaign.check(campaign.finish_while_workers_die("between-uploads"))
    print(campaign.story)
    assert len(campaign.kills) >= 3, campaign.story
