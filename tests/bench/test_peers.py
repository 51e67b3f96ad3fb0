"""The check of the peers' totals finds wrong ones."""

from pathlib import Path

from bench.peers import expected_totals, last_totals, wrong_totals
from bench.workload import write_files, zipf_events


def test_the_last_row_of_a_key_has_its_totals() -> None:
    rows = [(1, 2, 0.5), (1, 1, 0.25), (2, 1, 1.0), (1, 2, 0.5)]
    assert {1: (2, 0.5), 2: (1, 1.0)} == last_totals(rows)


def test_expected_totals_are_those_of_all_files(tmp_path: Path) -> None:
    write_files(tmp_path, zipf_events(20), 3, 100)
    found = expected_totals(tmp_path)
    assert 300 == sum(n for n, _ in found.values())
    assert all(0 <= total <= n for n, total in found.values())


def test_missing_wrong_and_additional_keys_are_found() -> None:
    expected = {1: (2, 0.5), 2: (1, 1.0), 3: (1, 0.1)}
    assert [] == wrong_totals({**expected, 1: (2, 0.5000001)}, expected)
    assert [1, 2, 3, 4] == wrong_totals({1: (3, 0.5), 2: (1, 2.0), 4: (1, 1.0)}, expected)
