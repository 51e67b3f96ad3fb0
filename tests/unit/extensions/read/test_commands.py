"""`statelog read`, `get`, `get --history`, `diff` and `sql` on a location with a known model."""

import json
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.locations.checkpoints import small_checkpoint, started
from tests.support.locations.edited_history import location_of
from tests.support.locations.histories import (
    History,
    Rows,
    first_history,
    has_all_variables,
    key_of,
    live_names,
    local,
    rows_of,
)

import statelog as sl
from statelog import extras
from statelog.cli.rows import show_rows
from statelog.errors import CheckpointError, StoreError
from statelog.extensions.read import parquet_files
from statelog.store import open_store


class Stored(NamedTuple):
    location: str
    history: History
    number: int
    """A key that has a value and a map."""

    @property
    def key(self) -> list[str]:
        """The key as the words of a command."""
        return [str(value) for value in key_of(self.number)]

    def rows(self, name: str) -> Rows:
        """Return the rows of a variable by key."""
        return self.history.model.rows(name, self.history.last_ms)


def whole_keys(history: History) -> list[int]:
    """Return the keys without a null that have a value and a map, if all variables are there."""
    if not has_all_variables(history):
        return []
    rows = [history.model.rows(name, history.last_ms) for name in ("total", "counts")]
    return [number for number in rows[0].keys() & rows[1].keys() if key_of(number)[1] is not None]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Return a location with all variables, whose name has spaces and letters beyond ASCII."""
    folder = tmp_path_factory.mktemp("state")
    history = first_history(
        "cli", lambda seed: local(folder / str(seed) / "jöb 100% ☃"), whole_keys
    )
    return Stored(location_of(history), history, whole_keys(history)[0])


def test_all_variables_or_one_of_a_checkpoint_are_read(call, stored):
    printed = call.lines("read", stored.location)
    for name in live_names(stored.history.model):
        rows = [row for row in printed if row["variable"] == name]
        assert stored.rows(name) == (rows_of(pa.Table.from_pylist(rows)) if rows else {})
    older = stored.history.checkpoint_id - 1
    timers = call.lines("read", stored.location, "$timers", "--checkpoint", str(older))
    older_timers = stored.history.expected[older].rows("$timers", None)
    assert older_timers == rows_of(pa.Table.from_pylist(timers))
    assert len(call.lines("read", stored.location, "$timers", "--limit", "2")) == 2
    text = call("read", stored.location, "$timers", "--limit", "1")
    assert "the first 1 row; --limit 0 shows all" in text
    assert f"$timers as of checkpoint {stored.history.checkpoint_id}, " in text
    count = sum(map(len, stored.rows("$timers").values()))
    assert f"{count} rows" in call("read", stored.location, "$timers", "--limit", "0")


def test_text_cannot_control_the_terminal(capsys):
    rows = [{"a": "\x1b[2Jé\n", "b": ["\x1b"], "c": b"\xff"}]
    show_rows(rows, ["a", "b", "c"], limit=None, as_json=False)
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert r"\x1b[2Jé\n" in text
    assert '["\\u001b"]' in text
    assert " ff " in text


def test_all_variables_of_a_key_are_read(call, stored):
    key, variables = stored.key, live_names(stored.history.model)
    printed = Counter(row["variable"] for row in call.lines("get", stored.location, *key))
    assert {name: printed[name] for name in variables} == {
        name: len(stored.rows(name).get(stored.number, ())) for name in variables
    }
    with sl.open(stored.location) as state:
        values = state.get(key=key_of(stored.number))
        assert variables == list(values)
        assert values["total"] == state.get("total", key_of(stored.number))
    versions = call.lines("get", "--history", stored.location, *key)
    assert set(variables) == {row["variable"] for row in versions}
    of_total = [row for row in versions if row.pop("variable") == "total"]
    assert of_total == call.lines("get", "--history", stored.location, "total", *key)


def test_a_null_in_a_key_is_named(call, stored):
    number = next(number for number in stored.rows("total") if key_of(number)[1] is None)
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
    as_text = {"x": "NaN", "y": ["Infinity", {"z": ["-Infinity", 1.5]}], "text": "NaN"}
    assert as_text == json.loads(capsys.readouterr().out)
    show_rows([numbers], list(numbers), limit=None, as_json=False)
    assert '["Infinity",{"z":["-Infinity",1.5]}]' in capsys.readouterr().out


def test_a_history_with_a_gap_says_so(call, stored, tmp_path):
    place = tmp_path / "damaged"
    shutil.copytree(stored.location, place)
    older = stored.history.checkpoint_id - 1
    metadata = place / f"chk-{older}" / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-30] + bytes(30))
    whole = call.lines("get", "--history", stored.location, "total", *stored.key)
    words = ("get", "--history", str(place), "total", *stored.key)
    versions = call.lines(*words, status=1)
    assert [version for version in whole if version["checkpoint_id"] != older] == versions
    text = call(*words, status=1)
    assert f"the history has gaps: checkpoint {older} cannot be read" in text
    with sl.open(str(place)) as state, pytest.raises(CheckpointError, match="has gaps") as caught:
        state.history("total", key_of(stored.number))
    assert ("damaged", older) == (caught.value.reason, caught.value.checkpoint_id)


def test_the_history_of_a_key_is_printed(call, stored):
    command = ("get", "--history", stored.location, "counts", *stored.key)
    rows = call.lines(*command)
    assert list(stored.history.expected)[-3:] == [row["checkpoint_id"] for row in rows]
    counts = stored.rows("counts")[stored.number]
    assert [[place, value] for place, value, _ in counts] == rows[-1]["state"]
    text = call(*command)
    assert "as of (UTC)" in text
    assert "3 rows" in text
    assert "retains 3 checkpoints" in text


def test_the_difference_of_two_checkpoints_is_a_table_for_each_variable(call, stored):
    older, newer = (str(number) for number in list(stored.history.expected)[-2:])
    rows = call.lines("diff", stored.location, older, newer, "--variable", "$timers")
    with sl.open(stored.location) as state:
        changes = state.changes(older, newer, "$timers").select(["key.k", "change"]).to_pylist()
        changed = [
            name
            for name in live_names(stored.history.model)
            if state.changes(older, newer, name).num_rows
        ]
    assert changes, "a history in which something changes"
    assert changes == [{"key.k": row["key.k"], "change": row["change"]} for row in rows]
    text = call("diff", stored.location, older, newer)
    lines_of_text = text.splitlines()
    for name in changed:
        heading = lines_of_text[lines_of_text.index(name) + 2]
        columns = [column for column in heading.split() if not column.startswith("key.")]
        assert ["change", "key_group", f"before.{name}", f"after.{name}"] == columns
    retained = "the location retains 3 checkpoints (setting retainedCheckpoints)"
    assert retained in text
    assert call("diff", stored.location, newer, newer) == f"no difference; {retained}\n"
    assert call("diff", stored.location, newer, newer, "--json") == ""


def test_wrong_calls_say_what_is_right(call, stored, tmp_path: Path):
    location = stored.location
    assert "its variables are 'total'" in call("read", location, "totals", status=2)
    assert "a key requires a value for each of (k int64, name string); got 1" in call(
        "get", location, "total", "1", status=2
    )
    assert "takes int64" in call("get", "--history", location, "total", "one", "x", status=2)
    assert "does not exist" in call("read", location, "--checkpoint", "99", status=1)
    assert "have an operator 'x'" in call("read", location, "--operator", "x", status=2)
    other = tmp_path / "other"
    small_checkpoint(started(open_store(str(other))), 1)
    assert "not created by a streaming query" in call("read", str(other), status=1)


# --- files ----------------------------------------------------------------------------------------


def test_all_variables_become_one_file_each(call, stored, tmp_path):
    out = tmp_path / "öut put"
    files = call.lines("read", stored.location, "--to", str(out))
    names = live_names(stored.history.model)
    assert set(names) == {item["variable"] for item in files}
    for file in files:
        table = pq.read_table(file["path"])
        assert stored.rows(file["variable"]) == rows_of(table)
        assert table.num_rows == file["rows"]
        assert stored.history.checkpoint_id == file["checkpoint_id"]
        assert Path(file["path"]).stat().st_size == file["size_bytes"]
        facts = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
        assert facts["statelog.variable"] == file["variable"]
        assert facts["statelog.checkpoint"] == str(stored.history.checkpoint_id)
    assert {f"{name}.parquet" for name in names} == {path.name for path in out.iterdir()}


def test_one_variable_of_an_older_checkpoint_becomes_one_file(call, stored, tmp_path):
    older = stored.history.checkpoint_id - 1
    out = tmp_path / "timers.parquet"
    command = ["read", stored.location, "--to", str(out), "$timers"]
    text = call(*command, "--checkpoint", str(older))
    assert f" of $timers as of checkpoint {older}" in text
    assert stored.history.expected[older].rows("$timers", None) == rows_of(pq.read_table(out))


def test_a_file_that_exists_or_appears_during_the_export_is_kept(
    call, stored, tmp_path, monkeypatch
):
    out = tmp_path / "timers.parquet"
    out.write_text("mine")
    command = ["read", stored.location, "--to", str(out), "$timers"]
    assert "already exists; pass --overwrite to replace it" in call(*command, status=2)
    with monkeypatch.context() as patch:
        patch.setattr(parquet_files, "_check_absent", lambda files, facts, overwrite: None)
        assert "exists" in call(*command, status=2)
    assert out.read_text() == "mine"
    assert [out] == list(tmp_path.iterdir())
    call(*command, "--overwrite")
    assert pq.read_table(out).num_rows
    assert [out] == list(tmp_path.iterdir())


def test_a_failed_export_leaves_nothing(call, stored, tmp_path, monkeypatch):
    def failing(self, *arguments, **more):
        raise StoreError("the store failed")
        yield

    monkeypatch.setattr(parquet_files.StateReader, "rows", failing)
    out = tmp_path / "x"
    assert "the store failed" in call("read", stored.location, "--to", str(out), status=1)
    assert list(out.iterdir()) == []
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "x"
    assert "cannot write" in call("read", stored.location, "--to", str(below), status=1)
    assert ["file", "x"] == sorted(path.name for path in tmp_path.iterdir())


def test_wrong_exports_say_what_is_right(call, stored, tmp_path):
    location = stored.location
    out = ("--to", str(tmp_path / "all.parquet"))
    assert "pass a folder" in call("read", location, *out, status=2)
    assert "its variables are 'total'" in call("read", location, *out, "nope", status=2)
    (tmp_path / "file").write_text("")
    assert "is not a folder" in call("read", location, "--to", str(tmp_path / "file"), status=2)
    assert "does not exist" in call("read", location, *out, "--checkpoint", "99", status=1)


# --- sql ------------------------------------------------------------------------------------------


def test_sql_is_answered(call, stored):
    totals = stored.rows("total")
    answer = call.lines("sql", stored.location, "select count(*) as n from total")
    assert answer == [{"n": len(totals)}]
    number = next(iter(totals))
    statement = f'select "key.name" as name from total where "key.k" = {number}'
    assert call.lines("sql", stored.location, statement) == [{"name": key_of(number)[1]}]
    text = call("sql", stored.location, "from timers", "--limit", "1")
    assert "fires_at_ms" in text
    older = stored.history.checkpoint_id - 1
    count = sum(map(len, stored.history.expected[older].rows("$timers", None).values()))
    statement = "select count(*) n from timers"
    answer = call.lines("sql", stored.location, statement, "--checkpoint", str(older))
    assert answer == [{"n": count}]


def test_wrong_sql_is_a_wrong_call(call, stored, monkeypatch):
    assert "syntax error" in call("sql", stored.location, "selec 1", status=2)
    assert '"counts"' in call("sql", stored.location, "from nope", status=2)

    def missing(feature, extra, module):
        raise extras.missing_error(feature, extra, module)

    monkeypatch.setattr(extras, "load", missing)
    text = call("sql", stored.location, "select 1", status=2)
    assert "pip install 'statelog[sql]'" in text


OUTSIDE = (
    "select * from read_text('{folder}/secret')", "copy total to '{folder}/out.csv'",
    "export database '{folder}/out'", "attach '{folder}/out.db'",
    "select * from glob('{folder}/*')", "load httpfs",
)  # fmt: skip
LOCKED = ("set enable_external_access=true", "reset lock_configuration", "pragma threads=1")


@pytest.mark.parametrize("statement", [*OUTSIDE, *LOCKED])
def test_sql_reaches_nothing_outside_of_the_location(call, stored, tmp_path, statement):
    (tmp_path / "secret").write_text("s")
    text = call("sql", stored.location, statement.format(folder=tmp_path), status=2)
    assert ("--allow-files" in text) == (statement in OUTSIDE)
    assert ["secret"] == [file.name for file in tmp_path.iterdir()]


def test_sql_reads_and_writes_files_where_that_is_allowed(call, stored, tmp_path):
    statement = f"copy (select count(*) from total) to '{tmp_path}/out.csv'"
    call("sql", stored.location, statement, "--allow-files")
    answer = call.lines("sql", stored.location, f"from '{tmp_path}/out.csv'", "--allow-files")
    assert 1 == len(answer)
