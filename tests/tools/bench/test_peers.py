"""The check of the peers' totals finds wrong ones."""

from pathlib import Path

from bench.peers import expected_totals, last_totals, state_work, wrong_totals
from bench.workload import write_files, zipf_events

from statelog.spark import BatchProgress


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


def test_state_work_is_all_of_the_slowest_task_but_the_wait_in_each_wave() -> None:
    phases = {"input": 50.0, "wait": 40.0, "process": 15.0}
    reports = [
        BatchProgress(batch_id=at, checkpoint_id=at, tasks=tasks, task_milliseconds=phases)
        for at, tasks in enumerate([2, 2, 3])
    ]
    assert state_work(reports, [100, 100]) == (0.25 + 0.50) / 2
