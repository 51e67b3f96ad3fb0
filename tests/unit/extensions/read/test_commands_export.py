"""`statelog read --to` and `statelog sql` on a location with a known model."""

from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest
from tests.support.locations.checkpoints import started
from tests.support.locations.edited_history import location_of
from tests.support.locations.histories import (
    History,
    Rows,
    first_history,
    key_of,
    local,
    rows_of,
)

from statelog import extras
from statelog.errors import StoreError
from statelog.extensions.read import parquet_files
from statelog.state.reader import state_reader
from statelog.store import open_store


class Stored(NamedTuple):
    location: str
    history: History

    def rows(self, name: str) -> Rows:
        """Return the rows of a variable by key."""
        return self.history.model.rows(name, self.history.last_ms)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Return a location with all variables, whose name has spaces and letters beyond ASCII."""
    root = tmp_path_factory.mktemp("state")
    history = first_history("export", lambda seed: local(root / str(seed) / "jöb 100% ☃"))
    return Stored(location_of(history), history)


NAMES = ("total", "recent", "counts", "$timers")


def test_all_variables_become_one_file_each(call, stored, tmp_path):
    out = tmp_path / "öut put"
    files = call.lines("read", stored.location, "--to", str(out))
    assert set(NAMES) == {item["variable"] for item in files}
    for file in files:
        table = pq.read_table(file["path"])
        assert stored.rows(file["variable"]) == rows_of(table)
        assert table.num_rows == file["rows"]
        assert stored.history.checkpoint_id == file["checkpoint_id"]
        assert Path(file["path"]).stat().st_size == file["size_bytes"]
        facts = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
        assert facts["statelog.variable"] == file["variable"]
        assert facts["statelog.checkpoint"] == str(stored.history.checkpoint_id)
    assert {f"{name}.parquet" for name in NAMES} == {path.name for path in out.iterdir()}


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
    assert "exists; --overwrite replaces it" in call(*command, status=2)
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
    assert "is not a state location" in call("read", str(tmp_path), *out, status=2)
    started(open_store(str(tmp_path / "new")))
    assert "does not contain a checkpoint" in call("read", str(tmp_path / "new"), *out, status=1)


def test_a_larger_state_is_exported_in_portions(call, stored, tmp_path, monkeypatch):
    monkeypatch.setattr(state_reader, "_PORTION_BYTES", 500)
    monkeypatch.setattr(state_reader, "_BATCH_ROWS", 2)
    call("read", stored.location, "--to", str(tmp_path / "out"))
    for name in NAMES:
        file = tmp_path / "out" / f"{name}.parquet"
        assert stored.rows(name) == rows_of(pq.read_table(file))


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
