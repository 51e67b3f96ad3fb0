"""The benchmark pages: made of JSON only, complete, and with figures that can be read as text."""

import re
from pathlib import Path
from typing import Any

import pytest
from bench.harness import page
from bench.harness.blocks import BLOCKS, Source, ratios
from bench.harness.blocks.peers import BESIDE, PEERS
from bench.harness.figures import Ratio
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


def growing(count: int, ms: float) -> dict[str, Any]:
    names = ("state_objects", "state_bytes", "spark_files", "spark_bytes")
    names += ("jvm_mib", "driver_mib", "workers_mib")
    samples = [dict.fromkeys(names, 100 + at) for at in range(count // 10)]
    heap = {"hundredth": 100.0, "last": 103.0}
    return {"runs": [{"milliseconds": [ms] * count, "samples": samples, "heap_mib": heap}]}


def simulated(tasks: int, handles: int, seconds: float) -> dict[str, Any]:
    names = ("plan", "instructions", "answers", "acknowledge", "commit", "advance", "clean_up")
    return {
        "tasks": tasks,
        "handles": handles,
        "runs": [
            {
                "seconds_per_batch": [seconds] * 3,
                "steps": dict.fromkeys(names, seconds / 7),
                "requests": {"put": 1, "head": 3, "list": 1, "deleted objects": 1500},
                "driver_bytes": 8_000_000,
                "commit_bytes": 7_900_000,
                "instruction_bytes": 300_000,
                "answer_bytes": 5_000_000,
                "log_handles": handles,
                "snapshots": 78,
                "snapshot_bytes": 10**11,
                "peak_memory_mib": 300,
            }
        ],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with made-up results of what `make bench` measures in the common form."""
    spark = {"title": "Spark `transformWithState`"}
    peers = {
        "spark-tws": batches(1000) | spark,
        "spark-agg-rocksdb": batches(400) | {"title": "Spark aggregation"},
        "statelog-direct": batches(100) | {"title": "statelog, <rows>"},
        "statelog-columns-direct": {"runs": [], "skipped": "not there", "title": "columns"},
    }
    for name in PEERS:
        write(tmp_path / f"{name}.json", document(name, peers, events=1000))
    jobs = {
        f"top-k/{engine}": batches(ms, compared_rows=1) | {"compared_rows": 1234}
        for engine, ms in (("spark", 900), ("statelog-staged", 300), ("statelog-direct", 100))
    }
    for name in BESIDE:
        write(tmp_path / f"{name}.json", document(name, jobs))
    points = {}
    for curve in ("batch-size", "keys", "budget", "value-size", "tasks"):
        for at in (1, 10, 100):
            facts = {"curve": curve, "way": "statelog-direct", "size": at, "title": "rows"}
            more = {"memory_mib": {"RssAnon": 300, "RssFile": 20, "local": 12}}
            points[f"{curve}/{at}"] = batches(50 + at, **more) | facts
    write(tmp_path / "curves.json", document("curves", points))
    many = {"floor": growing(400, 90), "statelog": growing(400, 110)}
    write(tmp_path / "many-batches.json", document("many-batches", many))
    scale = {
        "tasks-100": simulated(100, 800, 0.02),
        "tasks-5000": simulated(5000, 40_000, 1.0),
        "log-2": simulated(5000, 10_000, 0.7),
        "log-8": simulated(5000, 40_000, 1.0),
    }
    numbers = {"events_per_task": 20_000, "delta_bytes": 480_000, "state_bytes": 10**13}
    write(tmp_path / "driver-scale.json", document("driver-scale", scale, **numbers))
    return tmp_path


COMMON = [name for name in BLOCKS if re.match(r"peers|queries|variety|curve|many|scale", name)]
OWN = [name for name in BLOCKS if name not in COMMON]


@pytest.mark.parametrize("name", COMMON)
def test_each_block_of_made_up_results_has_a_table(name: str, folder: Path) -> None:
    made = BLOCKS[name](Source(folder))
    heads, rule, first, *_ = made.splitlines()
    assert heads.count("|") == rule.count("|") == first.count("|")
    assert "nan" not in made and "inf" not in made
    assert "`bench/results/" in made or "computed from" in made


@pytest.mark.parametrize("name", OWN)
def test_each_block_of_stored_results_has_a_table(name: str) -> None:
    assert BLOCKS[name](Source(RESULTS)).startswith("| ")


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


def test_the_ratios_of_all_results_are_compared(folder: Path) -> None:
    found = ratios(Source(folder))
    assert 9.8 == round(found["peers-100k: statelog-direct to spark-tws"].value, 1)
    assert 3.9 == round(found["peers-1m: statelog-direct to spark-agg-rocksdb"].value, 1)
    assert 8.8 == round(found["queries: top-k, statelog-direct to spark"].value, 1)
    flat = found["many-batches: ms per micro-batch, last to first hundred"]
    assert Ratio(1.0, 0.0, higher_is_better=False) == flat
    per_task = found["driver-scale: CPU per task, 5000 to 100 tasks"]
    assert (1.0, False) == (round(per_task.value, 3), per_task.higher_is_better)


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
