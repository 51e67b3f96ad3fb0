"""The benchmark pages: made of JSON only, complete, and with figures that can be read as text."""

import re
from pathlib import Path
from typing import Any

import pytest
from bench.harness import page
from bench.harness.blocks import BLOCKS, Source, ratios
from bench.harness.blocks.peers import PEERS
from bench.harness.results import write
from bench.run import BENCHMARKS
from tests.house.sources import ROOT

RESULTS = ROOT / "bench" / "results"
MEASURED = re.compile(r"\b\d[\d,.]*\s?(?:x|ms|MiB|events/s|M/s|µs)\b")


def document(name: str, parts: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    machine = {"cpu": "a <CPU>", "cores": 2, "python": "3.11", "packages": {"pyspark": "4.3"}}
    made = {"commit": "abc", "measured_at": "2026-11-22T10:00:00", "load": 0.1, "title": "T"}
    return {
        "name": name,
        "command": f"python -m {name}",
        "machine": machine,
        "arguments": arguments,
        "parts": {key: made | part for key, part in parts.items()},
    }


def batches(ms: float, **more: Any) -> dict[str, Any]:
    run = {"milliseconds": [ms, ms + 2, ms + 4], "events": [1000, 1000, 1000]}
    return {"runs": [run | {"files_per_batch": 1.5, "bytes_per_batch": 2048} | more]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with made-up results of the comparison with Spark."""
    peers = {
        "spark-tws": batches(1000) | {"title": "Spark `transformWithState`"},
        "spark-agg-rocksdb": batches(400) | {"title": "Spark aggregation"},
        "statelog-direct": batches(100) | {"title": "statelog, <rows>"},
        "statelog-columns-direct": {"runs": [], "skipped": "not there", "title": "columns"},
    }
    for name in PEERS:
        write(tmp_path / f"{name}.json", document(name, peers, events=1000))
    return tmp_path


@pytest.mark.parametrize("name", BLOCKS)
def test_each_block_of_stored_results_has_a_table(name: str) -> None:
    made = BLOCKS[name](Source(RESULTS))
    heads, rule, first, *_ = made.splitlines()
    assert heads.startswith("| ")
    assert heads.count("|") == rule.count("|") == first.count("|")
    assert not re.search(r"\b(nan|inf)\b", made)


def test_a_figure_on_the_page_is_that_of_the_json(folder: Path) -> None:
    before = BLOCKS["peers-100k"](Source(folder))
    assert (
        "| statelog, <rows> | 102 (100 to 104) | 9,804 | **9.8x** | 3.9x |  | 1.50 | 2.00 | 3 |"
        in before
    )
    assert "Left out: columns: not there." in before
    changed = document(
        "peers-100k",
        {"spark-tws": batches(1000), "statelog-direct": batches(50) | {"title": "own"}},
        events=1000,
    )
    write(folder / "peers-100k.json", changed)
    assert "| own | 52 (50 to 54) | 19,231 | **19.3x** |" in BLOCKS["peers-100k"](Source(folder))


def test_other_engines_are_ordered_by_their_events_for_each_cpu_second(tmp_path: Path) -> None:
    def engine(title: str, events: int) -> dict[str, Any]:
        run = {"events_per_s": 3 * events, "events_per_cpu_s": events, "peak_mib": 100}
        facts = {
            "guarantee": "exactly once",
            "output": "event",
            "packages": ["quixstreams==3.28.0"],
        }
        return {"runs": [run, run | {"events_per_cpu_s": 3 * events}], "title": title, **facts}

    parts = {
        "totals/statelog-rows": engine("statelog, rows", 100),
        "totals/quix": engine("Quix", 150),
        "totals/flink-thread": {"runs": [], "skipped": "no Java", "title": "PyFlink"},
        "last_ten/bytewax": engine("Bytewax", 900),
    }
    write(tmp_path / "elsewhere.json", document("elsewhere", parts))
    lines = BLOCKS["elsewhere"](Source(tmp_path)).splitlines()
    assert lines[2:4] == [
        "| Quix | exactly once | event | 450 (450 to 450) | 300 (150 to 450) | 1.50x | 100 | 2 |",
        "| **statelog, rows** | exactly once | event | 300 (300 to 300) | 200 (100 to 300) |  | 100 | 2 |",
    ]
    assert "Versions: `quixstreams==3.28.0`." in lines
    assert "Not measured: PyFlink: no Java." in lines


def test_a_curve_says_how_much_it_grows_and_where_most(tmp_path: Path) -> None:
    def point(size: int, ms: float) -> dict[str, Any]:
        facts = {"curve": "tasks", "way": "rows", "size": size, "title": "rows"}
        return batches(ms, puts=[1, 1], stored=9) | facts

    parts = {f"tasks/{size}": point(size, ms) for size, ms in ((1, 98), (11, 118), (21, 298))}
    write(tmp_path / "curves.json", document("curves", parts))
    said = "rows: 3.0x the time from 1 to 21 tasks, most of it from 11 to 21 (2.5x); 10 ms for each additional task."
    assert said in BLOCKS["curve-tasks"](Source(tmp_path))
    parts["tasks/21"] = point(21, 100)
    del parts["tasks/11"]
    write(tmp_path / "curves.json", document("curves", parts))
    assert "rows: no growth." in BLOCKS["curve-tasks"](Source(tmp_path))


def test_the_ratios_of_all_results_are_compared(folder: Path) -> None:
    found = ratios(Source(folder))
    assert 9.8 == round(found["peers-100k: statelog-direct to spark-tws"].value, 1)
    assert 3.9 == round(found["peers-1m: statelog-direct to spark-agg-rocksdb"].value, 1)
    stored = ratios(Source(RESULTS))
    assert stored["many-batches: ms per micro-batch, last to first hundred"].value < 1.5
    per_task = stored["driver-scale: CPU per task, 5000 to 100 tasks"]
    assert not per_task.higher_is_better


def test_without_results_there_are_no_ratios_and_the_page_says_what_to_run(tmp_path: Path) -> None:
    assert {} == ratios(Source(tmp_path))
    text = "a\n<!-- bench:curve-keys -->\nold 7x\n<!-- /bench -->\nb\n"
    made = page.filled(text, "images", Source(tmp_path))
    assert '*Not measured yet: `make bench ARGS="--only curves"` does it.*' in made
    assert "old" not in made
    assert made.startswith("a\n") and made.endswith("\nb\n")
    assert made == page.filled(made, "images", Source(tmp_path))


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_what_a_page_says_to_run_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r'--only ([\w -]+)"', text):
        assert set(name.split()) <= BENCHMARKS.keys()


def test_every_block_is_on_one_page() -> None:
    texts = [path.read_text(encoding="utf-8") for path in page.PAGES]
    named = [name for text in texts for name in re.findall(r"<!-- bench:([\w-]+) -->", text)]
    assert sorted(BLOCKS) == sorted(named)


def test_the_page_has_no_figures_that_are_written_by_hand() -> None:
    text = page.without_blocks(page.PAGES[0].read_text(encoding="utf-8"))
    assert [] == MEASURED.findall(text)
    assert ["9.7x"] == MEASURED.findall("it is 9.7x as fast")


def test_the_cost_of_encryption_has_the_range_of_the_rounds(tmp_path: Path) -> None:
    times = {"plain": [100, 110, 900, 200, 190, 0], "encrypted": [120, 99, 121, 300, 280, 281]}
    restarts = {"plain": [2.0, 4.0], "encrypted": [3.0, 3.0]}
    made = {
        "machine": {"cpu": ["C"], "cores": 2, "python": "3.11", "load_average": [0.5, 0, 0]},
        "events": 10,
        "keys": 1_000_000,
        "batch_ms": {"staged": times, "direct": times},
        "restart_s": restarts,
        "ratios": {"staged": 1.2, "direct": 1.2, "restart": 1.0},
    }
    write(tmp_path / "encryption.json", made)
    lines = BLOCKS["encryption"](Source(tmp_path)).splitlines()
    assert lines[2].split(" | ")[1:] == [
        "150 (110 to 190)", "200 (120 to 281)", "1.200 (1.091 to 1.479) |"
    ]  # fmt: skip
    assert "1.000 (0.750 to 1.500)" in lines[4]
    assert "2 rounds ran 3 micro-batches of 10 events" in lines[6]
