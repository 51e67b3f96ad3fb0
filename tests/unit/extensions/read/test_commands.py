"""`statelog read`, `get`, `get --history` and `diff` on a location with a known model."""

import json
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from tests.support.locations.checkpoints import small_checkpoint, started
from tests.support.locations.histories import History, key_of, local, rows_of

import statelog as sl
from statelog.cli.rows import show_rows
from statelog.errors import CheckpointError
from statelog.store import open_store


class Stored(NamedTuple):
    location: str
    history: History
    number: int


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Return a location with all variables, and a key that has a value and a map."""
    for seed in range(100):
        folder = tmp_path_factory.mktemp("state")
        history = History(f"cli {seed}", local(folder))
        history.run(6)
        names = {variable.name for variable in history.model.schema.states if not variable.dropped}
        if not names >= {"total", "counts"}:
            continue
        totals = history.model.rows("total", history.last_ms)
        counts = history.model.rows("counts", history.last_ms)
        for number in totals.keys() & counts.keys():
            if key_of(number)[1] is not None:
                return Stored(str(folder), history, number)
    raise AssertionError("no seed has such a key")


def key_texts(number: int) -> list[str]:
    return [str(part) for part in key_of(number)]


@pytest.mark.parametrize("seed", range(4))
def test_every_checkpoint_of_a_random_run_is_that_of_the_model(call, tmp_path, seed):
    history = History(f"command line {seed}", local(tmp_path), retained=3)
    history.run(7)
    compared = 0
    for checkpoint_id in list(history.expected)[-3:]:
        rows = call.lines("read", str(tmp_path), "--checkpoint", str(checkpoint_id))
        model, now_ms = history.expected[checkpoint_id], history.taken_at_ms[checkpoint_id]
        for state in model.schema.states:
            if state.dropped:
                continue
            mine = [row for row in rows if row["variable"] == state.name]
            table = pa.Table.from_pylist(mine)
            expected = model.rows(state.name, now_ms)
            assert expected == (rows_of(table) if mine else {})
            compared += len(mine)
    assert compared > 20


def test_a_variable_of_an_older_checkpoint_is_read(call, stored):
    older = stored.history.checkpoint_id - 1
    rows = stored.history.expected[older].rows("$timers", None)
    timers = call.lines("read", stored.location, "$timers", "--checkpoint", str(older))
    assert {(key, row[0]) for key, some in rows.items() for row in some} == {
        (row["key.k"], row["fires_at_ms"]) for row in timers
    }
    assert len(call.lines("read", stored.location, "$timers", "--limit", "2")) == 2


def test_state_is_read_for_people(call, stored):
    text = call("read", stored.location, "$timers", "--limit", "1")
    assert "the first 1 row; --limit 0 shows all" in text
    assert f"$timers as of checkpoint {stored.history.checkpoint_id}, " in text
    count = sum(map(len, stored.history.model.rows("$timers", None).values()))
    assert f"{count} rows" in call("read", stored.location, "$timers", "--limit", "0")


def test_text_cannot_control_the_terminal(capsys):
    rows = [{"a": "\x1b[2Jé\n", "b": ["\x1b"], "c": b"\xff"}]
    show_rows(rows, ["a", "b", "c"], limit=None, as_json=False)
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert r"\x1b[2Jé\n" in text
    assert '["\\u001b"]' in text
    assert " ff " in text


def test_one_key_is_read(call, stored):
    for name in ("total", "counts"):
        wanted = stored.history.model.rows(name, stored.history.last_ms)[stored.number]
        rows = call.lines("get", stored.location, name, *key_texts(stored.number))
        assert [row[1] for row in wanted] == [
            {part.removeprefix("value."): value for part, value in row.items() if "value." in part}
            for row in rows
        ]
    text = call("get", stored.location, "total", *key_texts(stored.number))
    assert key_of(stored.number)[1] in text


def test_all_variables_of_a_key_are_read(call, stored):
    key, model = key_texts(stored.number), stored.history.model
    printed = call.lines("get", stored.location, *key)
    variables = [variable.name for variable in model.schema.states if not variable.dropped]
    rows = {name: model.rows(name, stored.history.last_ms) for name in variables}
    counts = {name: len(rows[name].get(stored.number, ())) for name in variables}
    assert {name: count for name, count in counts.items() if count} == Counter(
        row["variable"] for row in printed
    )
    with sl.open(stored.location) as state:
        values = state.get(key=key_of(stored.number))
        assert variables == list(values)
        assert values["total"] == state.get("total", key_of(stored.number))
    versions = call.lines("get", "--history", stored.location, *key)
    assert set(variables) == {row["variable"] for row in versions}
    of_total = [row for row in versions if row.pop("variable") == "total"]
    assert of_total == call.lines("get", "--history", stored.location, "total", *key)


def test_a_null_in_a_key_is_named(call, stored):
    rows = stored.history.model.rows("total", stored.history.last_ms)
    number = next(row for row in rows if key_of(row)[1] is None)
    for words in (["total"], []):
        key = [*words, str(number), r"\N"]
        lines = call.lines("get", stored.location, *key)
        assert number in [row["key.k"] for row in lines]
        assert {None} == {row["key.name"] for row in lines}
        assert call.lines("get", "--history", stored.location, *key)[-1]["state"]
    for name in ("null", r"\\N", r"\\\N"):
        assert "no such key" in call("get", stored.location, str(number), name, status=1)


@pytest.mark.parametrize("verb", [["get"], ["get", "--history"]])
@pytest.mark.parametrize("words", [["total", "1", "no such"], ["1", "no such"]])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_key_without_state_is_no_such_key(call, stored, verb, words, options):
    text = call(*verb, stored.location, *words, *options, status=1)
    assert f"statelog: no such key: {' '.join(words)}; it is not in total" in text
    assert 1 == len(text.splitlines())


def test_numbers_that_json_does_not_have_are_text(capsys):
    numbers = {"x": math.nan, "y": [math.inf, {"z": (-math.inf, 1.5)}], "text": "NaN"}
    show_rows([numbers], list(numbers), limit=None, as_json=True)
    wanted = {"x": "NaN", "y": ["Infinity", {"z": ["-Infinity", 1.5]}], "text": "NaN"}
    assert wanted == json.loads(capsys.readouterr().out)
    show_rows([numbers], list(numbers), limit=None, as_json=False)
    assert '["Infinity",{"z":["-Infinity",1.5]}]' in capsys.readouterr().out


def test_a_history_with_a_gap_says_so(call, stored, tmp_path):
    place = tmp_path / "damaged"
    shutil.copytree(stored.location, place)
    older = stored.history.checkpoint_id - 1
    metadata = place / f"chk-{older}" / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-30] + bytes(30))
    key = key_texts(stored.number)
    whole = call.lines("get", "--history", stored.location, "total", *key)
    words = ("get", "--history", str(place), "total", *key)
    versions = call.lines(*words, status=1)
    assert [version for version in whole if version["checkpoint_id"] != older] == versions
    text = call(*words, status=1)
    assert f"the history has gaps: checkpoint {older} cannot be read" in text
    with sl.open(str(place)) as state, pytest.raises(CheckpointError, match="has gaps") as caught:
        state.history("total", key_of(stored.number))
    assert ("damaged", older) == (caught.value.reason, caught.value.checkpoint_id)


def test_the_history_of_a_key_is_printed(call, stored):
    rows = call.lines("get", "--history", stored.location, "counts", *key_texts(stored.number))
    ids = list(stored.history.expected)[-3:]
    assert ids == [row["checkpoint_id"] for row in rows]
    wanted = stored.history.model.rows("counts", stored.history.last_ms)[stored.number]
    assert [[place, value] for place, value, _ in wanted] == rows[-1]["state"]
    text = call("get", "--history", stored.location, "counts", *key_texts(stored.number))
    assert "as of (UTC)" in text
    assert "3 rows" in text
    assert "retains 3 checkpoints" in text


def test_the_difference_of_several_variables_is_a_table_for_each(call, stored):
    older, newer = (str(number) for number in list(stored.history.expected)[-2:])
    text = call("diff", stored.location, older, newer)
    with sl.open(stored.location) as state:
        names = [variable.name for variable in state.variables(newer)]
        changed = [
            name
            for name in names
            if any(
                row[f"before.{name}"] != row[f"after.{name}"]
                for row in state.changes(older, newer, name).to_pylist()
            )
        ]
    assert len(changed) > 1
    lines_of_text = text.splitlines()
    for name in changed:
        heading = lines_of_text[lines_of_text.index(name) + 2]
        assert ["change", "key_group", f"before.{name}", f"after.{name}"] == [
            column for column in heading.split() if not column.startswith("key.")
        ]


def test_the_difference_of_two_checkpoints_is_printed(call, stored):
    older, newer = (str(number) for number in list(stored.history.expected)[-2:])
    rows = call.lines("diff", stored.location, older, newer, "--variable", "$timers")
    olds = stored.history.expected[int(older)].rows("$timers", None)
    news = stored.history.expected[int(newer)].rows("$timers", None)
    wanted = {key: (olds.get(key), news.get(key)) for key in {**olds, **news}}
    assert {key for key, (old, new) in wanted.items() if old != new} == {
        row["key.k"] for row in rows
    }
    for row in rows:
        old, new = wanted[row["key.k"]]
        kind = "insert" if old is None else "delete" if new is None else "update"
        assert row["change"] == kind
    assert rows, "a history in which something changes"
    text = call("diff", stored.location, older, newer)
    assert "change" in text
    retained = "the location retains 3 checkpoints (setting retainedCheckpoints)"
    assert retained in text
    assert call("diff", stored.location, newer, newer) == f"no difference; {retained}\n"
    assert call("diff", stored.location, newer, newer, "--json") == ""


def test_wrong_calls_say_what_is_right(call, stored, tmp_path: Path):
    location = stored.location
    assert "it has 'total'" in call("read", location, "totals", status=2)
    assert "a key requires a value for each of (k int64, name string); got 1" in call(
        "get", location, "total", "1", status=2
    )
    assert "takes int64" in call("get", "--history", location, "total", "one", "x", status=2)
    assert "does not exist" in call("read", location, "--checkpoint", "99", status=1)
    assert "no operator 'x'" in call("read", location, "--operator", "x", status=2)
    for verb in ("read", "get", "diff"):
        more = {"read": [], "diff": ["0", "1"]}.get(verb, ["total", "1"])
        assert "is not a state location" in call(verb, str(tmp_path), *more, status=2)
        assert "does not exist" in call(verb, str(tmp_path / "nope"), *more, status=2)
    other = tmp_path / "other"
    small_checkpoint(started(open_store(str(other))), 1)
    assert "not created by a streaming query" in call("read", str(other), status=1)
