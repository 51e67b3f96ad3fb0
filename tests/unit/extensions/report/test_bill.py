"""The bill of a month, calculated by hand."""

import pytest

from statelog.extensions.report.bill import PRICES, bill_of

S3 = PRICES["s3"]


def test_a_micro_batch_a_minute() -> None:
    stored_bytes = 50_000_000_000
    bill = bill_of(puts_per_batch=2, seconds_per_batch=60.0, stored_bytes=stored_bytes, prices=S3)
    assert 43_200 == bill.batches_per_month
    # 86,400 puts and 43,200 listings at 0.005 for each 1,000, and no get; 50 GB at 0.023.
    assert bill.request_dollars == pytest.approx(0.648)
    assert bill.storage_dollars == pytest.approx(1.15)
    assert bill.dollars == pytest.approx(1.798)


@pytest.mark.parametrize(("seconds", "listings"), [(1.0, 0.05), (30.0, 0.5), (3600.0, 1.0)])
def test_many_commits_share_a_listing(seconds: float, listings: float) -> None:
    bill = bill_of(puts_per_batch=1, seconds_per_batch=seconds, stored_bytes=0, prices=S3)
    assert listings == bill.lists_per_batch
    batches = 30 * 24 * 3600 / seconds
    assert bill.request_dollars == pytest.approx(batches * (1 + listings) * 0.005 / 1000)


def test_without_a_rate_there_is_no_bill_of_requests() -> None:
    bill = bill_of(puts_per_batch=1, seconds_per_batch=None, stored_bytes=1, prices=S3)
    assert (None, None) == (bill.request_dollars, bill.dollars)


def test_stated_prices_replace_those_of_the_list() -> None:
    changed = PRICES["azure"].changed(gets_per_1000=0.5)
    assert (0.5, 0.005, 0.018) == (changed.gets_per_1000, changed.puts_per_1000, changed.gb_month)
    assert "changed" in changed.title and "stated" in changed.source
    assert PRICES["azure"] is PRICES["azure"].changed()


def test_each_list_names_its_source_and_its_day() -> None:
    for name, prices in PRICES.items():
        assert name == prices.name
        assert prices.source and prices.noted_on >= "2026-11-22"
        assert 0 < prices.gets_per_1000 < prices.puts_per_1000 < prices.gb_month
