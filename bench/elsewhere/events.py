"""
Make the events of the comparison, and the answers to its queries.

2,000,000 events, 200,000 keys by a Zipf law (exponent 0.9), one value each.  All events of a key are in the files of
one of two partitions, in order, so that the last ten values of a key are the same for every engine:

    parquet/<batch>-<partition>.parquet     a micro-batch is two files
    csv/<partition>.csv                     the same events of a partition, without a header
    csv-header/<partition>.csv              with one
    answers.npz                             count and sum of each key, and its last ten values
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from bench.harness.query_run import set_age
from bench.workload import ZipfKeys

PARTITIONS = 2
LAST = 10


def make_events(folder: Path, *, events: int, keys: int, batches: int, seed: int = 7) -> None:
    """Write the files, unless the folder has them."""
    if (folder / "answers.npz").exists():
        return
    rng = np.random.default_rng(seed)
    all_keys = ZipfKeys(keys).draw(rng, events)
    values = np.round(rng.random(events), 6)
    for name in ("parquet", "csv", "csv-header"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for partition in range(PARTITIONS):
        table = pa.table({"key": all_keys, "value": values}).filter(
            all_keys % PARTITIONS == partition
        )
        csv.write_csv(table, folder / f"csv-header/{partition}.csv")
        options = csv.WriteOptions(include_header=False)
        csv.write_csv(table, folder / f"csv/{partition}.csv", options)
    for batch, rows in enumerate(np.array_split(np.arange(events), batches)):
        for partition in range(PARTITIONS):
            chosen = rows[all_keys[rows] % PARTITIONS == partition]
            table = pa.table({"key": all_keys[chosen], "value": values[chosen]})
            path = folder / f"parquet/{batch:04}-{partition}.parquet"
            pq.write_table(table, path)
            set_age(path, PARTITIONS * batch + partition)
    _write_answers(folder / "answers.npz", all_keys, values, keys)


def _write_answers(path: Path, all_keys: np.ndarray, values: np.ndarray, keys: int) -> None:
    order = np.argsort(all_keys, kind="stable")
    counts = np.bincount(all_keys, minlength=keys)
    ends = np.cumsum(counts)
    last = np.full((keys, LAST), np.nan)
    for key in np.nonzero(counts)[0]:
        newest = values[order[max(ends[key] - LAST, ends[key] - counts[key]) : ends[key]]]
        last[key, : len(newest)] = newest
    sums = np.bincount(all_keys, weights=values, minlength=keys)
    np.savez(path, counts=counts, sums=sums, last=last)


def check_answers(folder: Path, answers: Path, query: str) -> int:
    """
    Compare what a job wrote with the answers, and return the number of keys.

    Raises:
        AssertionError: A key is missing or unknown, or its answer is wrong.
    """
    right = np.load(folder / "answers.npz")
    found: dict[int, list[float]] = {}
    for path in sorted(answers.iterdir()):
        for line in path.read_text(encoding="ascii").splitlines():
            words = line.split()
            key, numbers = int(words[0]), [float(word) for word in words[1:]]
            if query == "last_ten" or numbers[0] >= found.get(key, [0.0])[0]:
                found[key] = numbers
    keys = np.nonzero(right["counts"])[0]
    assert set(found) == {int(key) for key in keys}, (
        f"{len(found)} keys are answered, {len(keys)} are in the events"
    )
    for key in keys:
        if query == "totals":
            expected = [right["counts"][key], right["sums"][key]]
        else:
            expected = [value for value in right["last"][key] if not np.isnan(value)]
        assert np.allclose(found[int(key)], expected, rtol=0, atol=1e-6), (
            f"key {key}: {found[int(key)]}, not {expected}"
        )
    return len(keys)
