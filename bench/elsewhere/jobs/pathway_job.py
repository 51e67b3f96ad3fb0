"""Pathway: its own reducers, or a Python function for each key and commit; a result for each key and commit."""

import argparse
import os
import threading
import time as clock

import pathway as pw

DATA = os.environ["ELSEWHERE_DATA"]
ANSWERS = os.environ.get("ELSEWHERE_ANSWERS")
COMMIT_MS = 250
LEAVE_S = 3.0


class Event(pw.Schema):
    key: int
    value: float


@pw.reducers.stateful_many
def total(state, rows):
    """Add the values of a commit to count and sum."""
    n, amount = state if state is not None else (0, 0.0)
    for (value,), count in rows:
        n += count
        amount += value * count
    return (n, amount)


def main():
    """Run until all events are in a result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=("reducers", "function"), default="reducers")
    parser.add_argument("--events", type=int, required=True)
    given = parser.parse_args()
    events = pw.io.csv.read(
        f"{DATA}/csv-header", schema=Event, mode="streaming", autocommit_duration_ms=COMMIT_MS
    )
    groups = events.groupby(events.key)
    if given.mode == "reducers":
        results = groups.reduce(
            events.key, n=pw.reducers.count(), amount=pw.reducers.sum(events.value)
        )
    else:
        results = groups.reduce(events.key, numbers=total(events.value))
    last = {}

    def keep(key, row, time, is_addition):
        if is_addition:
            numbers = (row["n"], row["amount"]) if given.mode == "reducers" else row["numbers"]
            last[row["key"]] = tuple(numbers)

    if ANSWERS:
        pw.io.subscribe(results, keep)
    else:
        pw.io.null.write(results)
    mark_events(events, given.events, last)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


def mark_events(events, total_events, last):
    """Mark the events of each commit, and end the process after the last one."""
    file = open(f"{os.environ['ELSEWHERE_MARKS']}/{os.getpid()}", "a", encoding="ascii")
    seen = {"events": 0, "is_over": False}

    def count(key, row, time, is_addition):
        if is_addition and row["n"] > seen["events"]:
            seen["events"] = row["n"]
            print(clock.time(), row["n"], file=file, flush=True)

    def end(time):
        if seen["events"] >= total_events and not seen["is_over"]:
            seen["is_over"] = True
            threading.Timer(LEAVE_S if ANSWERS else 0.5, leave).start()

    def leave():
        if ANSWERS:
            with open(f"{ANSWERS}/answers", "w", encoding="ascii") as out:
                for key, numbers in last.items():
                    print(key, *numbers, file=out)
        os._exit(0)

    pw.io.subscribe(events.reduce(n=pw.reducers.count()), count, on_time_end=end)


main()
