"""
Stateful jobs that statelog and Spark run with the same unmodified processor.

`QUERIES` are shaped like Nexmark's: a running count, sessions, tumbling and sliding windows, the highest prices of
a key, the last row of a key, statistics of few keys, and a stream that is enriched by keyed state.  `VARIETY` has one job for each kind of state, for time, and for unusual rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench import workload
from bench.workload import TableOf
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

GAP_MS = 10_000
TOP = 10
HOUR_MS = 3_600_000
WINDOW_MS, SLIDE_MS = 10_000, 2_000
BIDS = "auction long, bidder long, price long, channel string, at timestamp"
EVENTS = "key long, value double"


class Processor(StatefulProcessor):
    """A processor that has nothing to close."""

    def close(self) -> None:
        """Do nothing."""


class RunningCount(Processor):
    """Count the bids of a bidder."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (n,) = self._count.get() or (0,)
        n += sum(1 for _ in rows)
        self._count.update((n,))
        yield Row(key=key[0], n=n)


class Sessions(Processor):
    """Bids of a bidder in one session, which ends after a gap; by timers in event time."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._session = handle.getValueState("session", "first long, last long, n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        times = sorted(int(row.at.timestamp() * 1000) for row in rows)
        first, last, n = self._session.get() or (times[0], times[0], 0)
        due = last + GAP_MS if n else None
        for at in times:
            if n and at > last + GAP_MS:
                yield Row(key=key[0], first=first, last=last, n=n)
                first, n = at, 0
            first, last, n = min(first, at), max(last, at), n + 1
        self._session.update((first, last, n))
        if due is not None and due != last + GAP_MS:
            self._handle.deleteTimer(due)
        if due != last + GAP_MS:
            self._handle.registerTimer(last + GAP_MS)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        first, last, n = self._session.get()
        self._session.clear()
        yield Row(key=key[0], first=first, last=last, n=n)


class HighestPrices(Processor):
    """The ten highest bids of an auction, in a list."""

    def init(self, handle: Any) -> None:
        self._prices = handle.getListState("prices", "price long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        stored = [price for (price,) in self._prices.get()]
        prices = heapq.nlargest(TOP, [*stored, *(row.price for row in rows)])
        if prices != stored:
            self._prices.put([(price,) for price in prices])
            yield Row(key=key[0], highest=prices[0], lowest=prices[-1])


class Enrichment(Processor):
    """Bids with the category of their auction; bids that come before it wait in a list."""

    def init(self, handle: Any) -> None:
        self._category = handle.getValueState("category", "category long")
        self._waiting = handle.getListState("waiting", "bidder long, price long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        bids, before = [], self._category.get()
        category = None if before is None else before[0]
        for row in rows:
            if row.category is None:
                bids.append((row.bidder, row.price))
            elif category is None:  # the first one counts, later ones change nothing
                category = row.category
        if category is None:
            self._waiting.appendList(bids)
            return
        if before is None:
            self._category.update((category,))
            bids = [*map(tuple, self._waiting.get()), *bids]
            self._waiting.clear()
        for bidder, price in bids:
            yield Row(key=key[0], bidder=bidder, price=price, category=category)


class WindowMaximum(Processor):
    """The highest bid of an auction in each ten seconds of event time."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._windows = handle.getMapState("windows", "start long", "price long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        highest: dict[int, int] = {}
        for row in rows:
            start = int(row.at.timestamp() * 1000) // WINDOW_MS * WINDOW_MS
            highest[start] = max(highest.get(start, 0), row.price)
        for start, price in highest.items():
            before = self._windows.getValue((start,))
            if before is None:
                self._handle.registerTimer(start + WINDOW_MS)
            if before is None or price > before[0]:
                self._windows.updateValue((start,), (price,))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        start = expiredTimerInfo.getExpiryTimeInMs() - WINDOW_MS
        (price,) = self._windows.getValue((start,))
        self._windows.removeKey((start,))
        yield Row(key=key[0], start=start, price=price)


class HotItems(Processor):
    """Bids of an auction in windows of ten seconds of event time, one each two seconds."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._counts = handle.getMapState("counts", "start long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        fresh: dict[int, int] = {}
        for row in rows:
            start = int(row.at.timestamp() * 1000) // SLIDE_MS * SLIDE_MS
            fresh[start] = fresh.get(start, 0) + 1
        due: set[int] = set()
        for start, n in fresh.items():
            before = self._counts.getValue((start,))
            if before is None:
                due.update(range(start + SLIDE_MS, start + WINDOW_MS + 1, SLIDE_MS))
            self._counts.updateValue((start,), (n + (0 if before is None else before[0]),))
        for end in sorted(due):
            self._handle.registerTimer(end)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        end = expiredTimerInfo.getExpiryTimeInMs()
        counts = [self._counts.getValue((at,)) for at in range(end - WINDOW_MS, end, SLIDE_MS)]
        self._counts.removeKey((end - WINDOW_MS,))
        n = sum(count[0] for count in counts if count is not None)
        if n:
            yield Row(key=key[0], end=end, n=n)


class LastBid(Processor):
    """The last bid of a bidder for each auction, in a map."""

    def init(self, handle: Any) -> None:
        self._bids = handle.getMapState("bids", "auction long", "at long, price long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        newest: dict[int, tuple[int, int]] = {}
        for row in rows:
            bid = int(row.at.timestamp() * 1000), row.price  # of two at one time, the higher one
            newest[row.auction] = max(bid, newest.get(row.auction, bid))
        for auction, bid in newest.items():
            before = self._bids.getValue((auction,))
            if before is None or bid > tuple(before):
                self._bids.updateValue((auction,), bid)
                yield Row(key=key[0], auction=auction, price=bid[1])


class Statistics(Processor):
    """Bids of a channel, by the rank of their price: few keys with many rows."""

    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "n long, low long, middle long, high long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, low, middle, high = self._total.get() or (0, 0, 0, 0)
        for row in rows:
            n += 1
            low += row.price < 10_000
            middle += 10_000 <= row.price < 500_000
            high += row.price >= 500_000
        self._total.update((n, low, middle, high))
        yield Row(key=key[0], n=n, low=low, middle=middle, high=high)


class ByChannel(Processor):
    """Bids of a bidder for each channel, in a map."""

    def init(self, handle: Any) -> None:
        self._channels = handle.getMapState("channels", "channel string", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        fresh: dict[str, tuple[int, int]] = {}
        for row in rows:
            n, total = fresh.get(row.channel, (0, 0))
            fresh[row.channel] = n + 1, total + row.price
        for channel, (n, total) in fresh.items():
            before = self._channels.getValue((channel,)) or (0, 0)
            self._channels.updateValue((channel,), (before[0] + n, before[1] + total))
            yield Row(key=key[0], channel=channel, n=before[0] + n, total=before[1] + total)


class LastPrices(Processor):
    """All prices since the list had a hundred, appended without reading it."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")
        self._prices = handle.getListState("prices", "price long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (n,) = self._count.get() or (0,)
        prices = [(row.price,) for row in rows]
        if n + len(prices) > 100:
            n = 0
            self._prices.clear()
        self._prices.appendList(prices)
        self._count.update((n + len(prices),))
        yield Row(key=key[0], n=n + len(prices))


class TotalOfKey(Processor):
    """Count of a key and sum of its values; with a time to live, if asked for."""

    ttl_ms: int | None = None

    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "n long, total double", self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self._total.get() or (0, 0.0)
        for row in rows:
            n, total = n + 1, total + row.value
        self._total.update((n, total))
        yield Row(key=key[0], n=n, total=total)


class TotalWithTtl(TotalOfKey):
    """The same, forgotten an hour after the last update."""

    ttl_ms = HOUR_MS


class Reminders(Processor):
    """A timer for each key, which every micro-batch moves; in processing time."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._due = handle.getValueState("due", "at long, n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before, n = self._due.get() or (0, 0)
        n += sum(1 for _ in rows)
        due = timerValues.getCurrentProcessingTimeInMs() + HOUR_MS
        if before and before != due:
            self._handle.deleteTimer(before)
        if before != due:
            self._handle.registerTimer(due)
        self._due.update((due, n))
        yield Row(key=key[0], n=n)


def _by_event_time(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("at", "5 seconds")


@dataclass(frozen=True, slots=True)
class Case:
    """
    A job, for both engines.

    Args:
        title: Its name on the page.
        processor: Makes the processor.
        key: Column by which the rows are grouped.
        schema: DDL of the input.
        output: DDL of the output.
        table: Makes the maker of the input.
        time_mode: Spark's name of it.
        prepare: Applied to the stream before it is grouped, as for a watermark.
    """

    title: str
    processor: Callable[[], StatefulProcessor]
    key: str
    schema: str
    output: str
    table: Callable[[], TableOf]
    time_mode: str = "None"
    prepare: Callable[[DataFrame], DataFrame] = lambda frame: frame


_COUNT = "key long, n long"
_TOTAL = "key long, n long, total double"
_WIDE = ", ".join(
    f"c{index:02d} {'string' if index % 5 == 0 else 'double' if index % 5 < 3 else 'long'}"
    for index in range(48)
)

QUERIES = {
    "count": Case("running count per bidder", RunningCount, "bidder", BIDS, _COUNT, workload.bids),
    "sessions": Case(
        "sessions per bidder",
        Sessions,
        "bidder",
        BIDS,
        "key long, first long, last long, n long",
        workload.bids,
        "EventTime",
        _by_event_time,
    ),
    "top-k": Case(
        "ten highest bids per auction",
        HighestPrices,
        "auction",
        BIDS,
        "key long, highest long, lowest long",
        workload.bids,
    ),
    "windows": Case(
        "highest bid per auction and 10 s",
        WindowMaximum,
        "auction",
        BIDS,
        "key long, start long, price long",
        workload.bids,
        "EventTime",
        _by_event_time,
    ),
    "hot-items": Case(
        "bids per auction in sliding windows",
        HotItems,
        "auction",
        BIDS,
        "key long, end long, n long",
        workload.bids,
        "EventTime",
        _by_event_time,
    ),
    "last-bid": Case(
        "last bid per bidder and auction",
        LastBid,
        "bidder",
        BIDS,
        "key long, auction long, price long",
        workload.bids,
    ),
    "statistics": Case(
        "bids per channel, four keys",
        Statistics,
        "channel",
        BIDS,
        "key string, n long, low long, middle long, high long",
        workload.bids,
    ),
    "enrich": Case(
        "bids enriched by their auction",
        Enrichment,
        "auction",
        "auction long, bidder long, price long, category long",
        "key long, bidder long, price long, category long",
        lambda: workload.bids_and_auctions(2_000),
    ),
}

VARIETY = {
    "list": Case("list state, appended", LastPrices, "bidder", BIDS, _COUNT, workload.bids),
    "map": Case(
        "map state",
        ByChannel,
        "bidder",
        BIDS,
        "key long, channel string, n long, total long",
        workload.bids,
    ),
    "ttl": Case(
        "value with a time to live",
        TotalWithTtl,
        "key",
        EVENTS,
        _TOTAL,
        lambda: workload.zipf_events(20_000),
        "ProcessingTime",
    ),
    "timers": Case(
        "a timer per key, moved",
        Reminders,
        "key",
        EVENTS,
        _COUNT,
        lambda: workload.zipf_events(20_000),
        "ProcessingTime",
    ),
    "wide": Case(
        "rows of 50 columns",
        TotalOfKey,
        "key",
        f"key long, value double, {_WIDE}",
        _TOTAL,
        workload.wide_rows,
    ),
    "strings": Case(
        "keys of 36 characters",
        TotalOfKey,
        "key",
        "key string, value double",
        "key string, n long, total double",
        workload.string_keys,
    ),
}
CASES = {**QUERIES, **VARIETY}
