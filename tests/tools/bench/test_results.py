"""Results in JSON: written run by run, merged, resumed; and the figures made of them."""

import json
from pathlib import Path

import pytest
from bench.harness.figures import Ratio, faster, growth, rate
from bench.harness.results import Results, in_turns, read, write
from bench.run import sign


def results(path: Path, *, resume: bool = False, events: int = 10) -> Results:
    return Results(path, "peers", {"events": events}, resume=resume)


def test_each_run_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    own = results(path)
    own.add("spark", {"milliseconds": [1, 2]}, title="Spark")
    first = json.loads(path.read_text())
    assert [{"milliseconds": [1, 2]}] == first["parts"]["spark"]["runs"]
    assert "Spark" == first["parts"]["spark"]["title"]
    assert {"machine", "commit", "command", "arguments", "seconds"} <= first.keys()
    own.add("spark", {"milliseconds": [3]})
    assert 2 == len(read(path)["parts"]["spark"]["runs"])


def test_a_second_measurement_replaces_its_parts_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    first = results(path)
    first.add("spark", {"n": 1})
    first.add("own", {"n": 1})
    second = results(path)
    assert [] == second.runs("own")
    second.add("own", {"n": 2})
    parts = read(path)["parts"]
    assert ([{"n": 1}], [{"n": 2}]) == (parts["spark"]["runs"], parts["own"]["runs"])


def test_a_resumed_measurement_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    called: list[str] = []

    def run(name: str) -> dict[str, object]:
        called.append(name)
        if len(called) == 3:
            raise KeyboardInterrupt
        return {"n": len(called)}

    parts = [("a", 2, lambda: run("a")), ("b", 2, lambda: run("b"))]
    with pytest.raises(KeyboardInterrupt):
        in_turns(results(path), parts)
    assert ["a", "b", "a"] == called
    assert [] == in_turns(results(path, resume=True), parts)
    assert ["a", "b", "a", "a", "b"] == called
    assert [2, 2] == [len(part["runs"]) for part in read(path)["parts"].values()]


def test_after_the_deadline_each_part_has_one_run(tmp_path: Path) -> None:
    own = results(tmp_path / "peers.json")
    parts = [("a", 3, lambda: {"n": 1}), ("b", 3, lambda: {"n": 1})]
    assert [] == in_turns(own, parts, deadline=0.0)
    assert (1, 1) == (len(own.runs("a")), len(own.runs("b")))


def test_a_part_that_fails_twice_does_not_stop_the_others(tmp_path: Path) -> None:
    own = results(tmp_path / "peers.json")
    calls: list[str] = []

    def fails(name: str, times: int) -> dict[str, object]:
        calls.append(name)
        if calls.count(name) <= times:
            raise OSError("no worker")
        return {"n": 1}

    parts = [("once", 2, lambda: fails("once", 1)), ("always", 2, lambda: fails("always", 9))]
    assert ["always"] == in_turns(own, parts)
    assert 2 == len(own.runs("once"))
    assert ("OSError: no worker", []) == (own.parts["always"]["failed"], own.runs("always"))
    assert 2 == calls.count("always")


def test_figures_are_made_of_all_runs_of_a_part() -> None:
    slow = {
        "runs": [
            {"milliseconds": [400, 400], "events": [10, 10]},
            {"milliseconds": [400], "events": [10]},
        ]
    }
    fast = {"runs": [{"milliseconds": [100, 200, 100], "events": [10, 10, 10]}]}
    assert Ratio(4.0, 0.5) == faster(fast, slow)
    assert 100 == rate(fast).median
    assert Ratio(1.5, 0.0, higher_is_better=False) == growth([2, 2], [3, 3])


def test_a_finished_benchmark_has_parts_of_one_commit_only(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    write(path, {"commit": "new", "parts": {"a": {"commit": "new"}, "b": {"commit": "old"}}})
    sign(path)
    assert {"commit": "new", "parts": {"a": {"commit": "new"}}} == read(path)
    write(path, {"machine": {}})
    sign(path)
    assert {"commit", "day", "machine"} == read(path).keys()
    sign(tmp_path / "missing.json")
    assert not (tmp_path / "missing.json").exists()
