"""The sections of the page that estimate: what a restart reads, and the bill of the store."""

from __future__ import annotations

from statelog.extensions.report import texts
from statelog.extensions.report.bill import PRICES, Bill
from statelog.extensions.report.charts import table
from statelog.extensions.report.figures import Figures
from statelog.extensions.report.html import Html, tag
from statelog.extensions.report.restart import Restart
from statelog.extensions.report.sections import section

_KINDS = {"snapshots": "Snapshots", "log": "Log files", "commits": "Commits, with log in them"}
_STORED = {
    "commits": "Commits and claims",
    "log": "Log files",
    "snapshots": "Snapshots",
    "output": "Staged output",
    "tags": "Tags",
    "other": "Other",
}


def restart_section(restart: Restart) -> Html:
    """Return what a restart reads, and the estimate of its time."""
    rows = [
        [_KINDS[part.kind], texts.count(part.objects), texts.size(part.size_bytes)]
        for part in restart.parts
    ]
    rows.append(["All", texts.count(restart.objects), texts.size(restart.size_bytes)])
    requests = restart.driver_requests + restart.task_requests
    return section(
        "restart",
        "What a restart reads",
        tag(
            "div",
            {"class": "pair"},
            tag(
                "div",
                {"class": "card"},
                tag("h3", {}, f"From checkpoint {restart.checkpoint_id}"),
                table(["Objects", "Number", "Size"], rows, caption="What a restart reads"),
                tag(
                    "p",
                    {"class": "note"},
                    f"{texts.plural(restart.tasks, 'task')} and the driver make "
                    f"{texts.plural(requests, 'request')}; they replay "
                    f"{texts.plural(restart.change_sets, 'change set')}. An object that two tasks "
                    "need is counted once in the table, and read by both.",
                ),
            ),
            tag(
                "div",
                {"class": "card"},
                tag("h3", {}, "How long it takes"),
                tag(
                    "p",
                    {"class": "figure"},
                    tag(
                        "output",
                        {"id": "restart-time", "for": "latency read restore"},
                        f"about {texts.duration(restart.seconds * 1000)}",
                    ),
                ),
                tag(
                    "p",
                    {"class": "note"},
                    "An estimate: the requests of the driver and of the task that reads the most "
                    f"({texts.plural(restart.slowest_requests, 'object')}, "
                    f"{texts.size(restart.slowest_bytes)}), one after the other, then its bytes. All "
                    "tasks run at the same time. Without Spark's own start, and without files that a "
                    "host still has.",
                ),
                _speeds(restart),
            ),
        ),
    )


def _speeds(restart: Restart) -> Html:
    speeds = restart.speeds
    return tag(
        "form",
        {"class": "assumptions", "id": "speeds", "aria-label": "Speeds of the estimate"},
        _field("latency", "Request, ms", speeds.latency_ms),
        _field("read", "Network of a task, MB/s", speeds.read_mb_s),
        _field("restore", "Restore of a task, MB/s", speeds.restore_mb_s),
    )


def bill_section(figures: Figures, bill: Bill) -> Html:
    """Return requests and storage of a month, and the prices."""
    stored = [
        [
            _STORED[stored_kind.kind],
            texts.count(stored_kind.objects),
            texts.size(stored_kind.size_bytes),
            _orphans(stored_kind.orphans, stored_kind.orphan_bytes),
        ]
        for stored_kind in figures.stored
    ]
    return section(
        "bill",
        "The bill of the store",
        tag(
            "div",
            {"class": "pair"},
            tag(
                "div",
                {"class": "card"},
                tag("h3", {}, "A month at this rate"),
                tag(
                    "p",
                    {"class": "figure"},
                    tag(
                        "output",
                        {"id": "bill-total", "for": "seconds puts gets storage"},
                        texts.money(bill.dollars),
                    ),
                ),
                tag("p", {"class": "note", "id": "bill-parts"}, _parts(bill)),
                _prices_form(bill),
                tag(
                    "p",
                    {"class": "note"},
                    f"{texts.count(bill.puts_per_batch)} puts and {bill.lists_per_batch:.2f} listings, "
                    "which cost as much as puts, for each micro-batch. No gets: a commit reads "
                    "nothing. Deletions cost nothing at these stores. Not "
                    "counted: reads of workers that lost their cache, restarts, transfers out of the "
                    "region, and repeated requests. After a backlog was processed the rate is higher "
                    "than it will be: set the seconds.",
                ),
            ),
            tag(
                "div",
                {"class": "card"},
                tag("h3", {}, "What is stored now"),
                table(
                    ["Objects", "Number", "Size", "Orphans"], stored, caption="What is stored now"
                ),
            ),
        ),
        tag(
            "div",
            {"class": "card"},
            tag("h3", {}, "Price lists"),
            tag(
                "p",
                {"class": "note"},
                "US dollars, noted from copies of the named pages. Prices change: compare them with "
                "yours.",
            ),
            _price_table(bill),
        ),
    )


def _orphans(number: int, size_bytes: int) -> str:
    return f"{number:,} ({texts.size(size_bytes)})" if number else "0"


def _parts(bill: Bill) -> str:
    if bill.request_dollars is None:
        return (
            f"Storage {texts.money(bill.storage_dollars)}. There are not two micro-batches of one run "
            "whose distance would tell the rate: set the seconds below."
        )
    return f"Requests {texts.money(bill.request_dollars)}, storage {texts.money(bill.storage_dollars)}."


def _prices_form(bill: Bill) -> Html:
    prices = bill.prices
    seconds = None if bill.seconds_per_batch is None else round(bill.seconds_per_batch, 2)
    return tag(
        "form",
        {"class": "assumptions", "id": "prices", "aria-label": "Assumptions of the bill"},
        _field("seconds", "Seconds from one micro-batch to the next", seconds),
        _field("puts", "1,000 puts or listings, $", prices.puts_per_1000),
        _field("gets", "1,000 gets, $", prices.gets_per_1000),
        _field("storage", "1 GB for a month, $", prices.gb_month),
    )


def _field(identity: str, label: str, value: float | None) -> Html:
    return tag(
        "div",
        {"class": "field"},
        tag("label", {"for": identity}, label),
        tag(
            "input",
            {
                "id": identity,
                "type": "number",
                "min": 0,
                "step": "any",
                "inputmode": "decimal",
                "autocomplete": "off",
                "value": "" if value is None else f"{value:g}",
            },
        ),
    )


def _price_table(bill: Bill) -> Html:
    listed = list(PRICES.values())
    if bill.prices not in listed:
        listed.insert(0, bill.prices)
    rows = [
        [
            f"{entry.title}{' (used)' if entry == bill.prices else ''}",
            texts.price(entry.puts_per_1000),
            texts.price(entry.gets_per_1000),
            texts.price(entry.gb_month),
            entry.source,
            entry.noted_on,
        ]
        for entry in listed
    ]
    heads = ["Store", "1,000 puts", "1,000 gets", "GB-month", "Source", "Noted on"]
    return table(heads, rows, caption="Price lists", left=(0, 4, 5))
