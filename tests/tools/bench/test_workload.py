"""The inputs of the benchmarks: the same for the same seed, and with the shape they claim."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from bench import workload

MAKERS = {
    "zipf": workload.zipf_events(1_000),
    "bids": workload.bids(500, 500),
    "auctions": workload.bids_and_auctions(500),
    "wide": workload.wide_rows(),
    "strings": workload.string_keys(500),
}


@pytest.mark.parametrize("name", MAKERS)
def test_files_depend_on_the_seed_and_their_number_only(name: str, tmp_path: Path) -> None:
    workload.write_files(tmp_path / "a", MAKERS[name], 3, 200)
    workload.write_files(tmp_path / "b", MAKERS[name], 2, 200)
    first, second = sorted((tmp_path / "a").iterdir()), sorted((tmp_path / "b").iterdir())
    assert 3 == len(first)
    assert [pq.read_table(p) for p in first[:2]] == [pq.read_table(p) for p in second]
    assert pq.read_table(first[0]) != pq.read_table(first[1])
    assert 200 == pq.read_table(first[2]).num_rows


def test_files_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    workload.write_files(tmp_path, MAKERS["zipf"], 3, 10)
    ages = [path.stat().st_mtime for path in sorted(tmp_path.iterdir())]
    assert ages == sorted(ages)
    assert 3 == len(set(ages))


def test_the_frequency_of_keys_follows_the_law() -> None:
    keys = workload.ZipfKeys(1_000).draw(np.random.default_rng(1), 200_000)
    counts = np.sort(np.bincount(keys, minlength=1_000))[::-1]
    expected = 1 / np.arange(1, 1_001) ** workload.ZIPF_EXPONENT
    expected *= 200_000 / expected.sum()
    assert 0.05 > abs(counts[0] / expected[0] - 1)
    assert 0.15 > abs(counts[99] / expected[99] - 1)
    assert 0 <= keys.min() and keys.max() < 1_000


def test_event_times_go_on_by_file_and_are_out_of_order_within_their_bound() -> None:
    rng = np.random.default_rng(5)
    first = workload.event_times(rng, 1_000, 0)
    second = workload.event_times(rng, 1_000, 1)
    step = workload.SECONDS_PER_FILE * 1000
    assert (np.diff(first) < 0).any()
    late = np.maximum.accumulate(first) - first
    assert 0 < late.max() <= workload.OUT_OF_ORDER_MS
    assert second.min() >= first.min() + step - workload.OUT_OF_ORDER_MS
    assert first.max() < workload.EPOCH_MS + step
