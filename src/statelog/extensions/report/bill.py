"""
Estimate the monthly bill of an object store from requests, storage and prices.

Counted is what each micro-batch does by design: the puts of its objects and of the commit, and its
share of the listing of the tags.  Not counted is what depends on chance: reads of workers that lost
their cache, restarts, transfers to another region, and requests that the client repeats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from statelog.checkpoint.clean_up import BATCH_COMMITS, BATCH_INTERVAL_MS

_MONTH_S: Final = 30 * 24 * 3600
_GB: Final = 1_000_000_000
GETS_PER_BATCH: Final = 0
"""A commit is one put; nothing is read or checked."""
LISTS_PER_BATCH: Final = 1 / BATCH_COMMITS
"""The listing of the tags of a batch of the clean-up; stores charge it as a put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """
    The list prices of a store, in US dollars.

    Args:
        name: Key of the table, and of the option `--prices`.
        title: Store, storage class and region.
        puts_per_1000: 1,000 requests of the class of PUT and LIST.
        gets_per_1000: 1,000 requests of the class of GET and HEAD.
        gb_month: 1 GB (10^9 bytes) for a month.
        source: The page that states them.
        noted_on: When they were noted here.
    """

    name: str
    title: str
    puts_per_1000: float
    gets_per_1000: float
    gb_month: float
    source: str
    noted_on: str = "2026-11-22"

    def changed(
        self,
        puts_per_1000: float | None = None,
        gets_per_1000: float | None = None,
        gb_month: float | None = None,
    ) -> Prices:
        """Return the prices, with those for which a value is passed replaced."""
        stated_prices = {
            "puts_per_1000": puts_per_1000,
            "gets_per_1000": gets_per_1000,
            "gb_month": gb_month,
        }
        stated = {name: price for name, price in stated_prices.items() if price is not None}
        if not stated:
            return self
        changes = {"title": f"{self.title}, changed", "source": "stated for this report"}
        return replace(self, **stated, **changes)  # type: ignore[arg-type]


PRICES: Final = {
    prices.name: prices
    for prices in (
        Prices(
            name="s3",
            title="Amazon S3 Standard, us-east-1",
            puts_per_1000=0.005,
            gets_per_1000=0.0004,
            gb_month=0.023,
            source="aws.amazon.com/s3/pricing",
        ),
        Prices(
            name="s3-express",
            title="Amazon S3 Express One Zone, us-east-1 (without its price per GB moved)",
            puts_per_1000=0.00113,
            gets_per_1000=0.00003,
            gb_month=0.11,
            source="aws.amazon.com/s3/faqs",
        ),
        Prices(
            name="gcs",
            title="Google Cloud Storage Standard, us-east1",
            puts_per_1000=0.005,
            gets_per_1000=0.0004,
            gb_month=0.020,
            source="cloud.google.com/storage/pricing-examples",
        ),
        Prices(
            name="azure",
            title="Azure Blob Storage hot, LRS, East US",
            puts_per_1000=0.005,
            gets_per_1000=0.0004,
            gb_month=0.018,
            source="azure.microsoft.com/pricing/details/storage/blobs",
        ),
    )
}
"""By name.  The first one is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """
    The requests and the storage during a month of 30 days.

    Args:
        batches_per_month: Micro-batches at the rate of the stored checkpoints; None if there are
            fewer than two.
        seconds_per_batch: Mean time between two of them; None as above.
        puts_per_batch, lists_per_batch, gets_per_batch: Requests of a micro-batch, on average.
        stored_bytes: Everything that the location stores now.
        prices: The stated prices.
        request_dollars: Price of the requests of a month; None if their number is unknown.
        storage_dollars: Price of the storage of a month.
    """

    batches_per_month: float | None
    seconds_per_batch: float | None
    puts_per_batch: float
    lists_per_batch: float
    gets_per_batch: float
    stored_bytes: int
    prices: Prices
    request_dollars: float | None
    storage_dollars: float

    @property
    def dollars(self) -> float | None:
        """The total in dollars, or None if the number of requests is unknown."""
        if self.request_dollars is None:
            return None
        return self.request_dollars + self.storage_dollars


def bill_of(
    *, puts_per_batch: float, seconds_per_batch: float | None, stored_bytes: int, prices: Prices
) -> Bill:
    """Compute the bill for a month."""
    batches = _MONTH_S / seconds_per_batch if seconds_per_batch else None
    lists_per_batch = LISTS_PER_BATCH
    dollars = None
    if seconds_per_batch:  # a clean-up waits for a full batch, or for this time
        share = seconds_per_batch * 1000 / BATCH_INTERVAL_MS
        lists_per_batch = min(1.0, max(LISTS_PER_BATCH, share))
    if batches is not None:
        puts = batches * (puts_per_batch + lists_per_batch)
        gets = batches * GETS_PER_BATCH
        dollars = (puts * prices.puts_per_1000 + gets * prices.gets_per_1000) / 1000
    return Bill(
        batches_per_month=batches,
        seconds_per_batch=seconds_per_batch,
        puts_per_batch=puts_per_batch,
        lists_per_batch=lists_per_batch,
        gets_per_batch=GETS_PER_BATCH,
        stored_bytes=stored_bytes,
        prices=prices,
        request_dollars=dollars,
        storage_dollars=stored_bytes / _GB * prices.gb_month,
    )
