"""`statelog edit`: what `export` wrote, changed by a batch computation, is the state afterwards."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.locations.edited_history import restarted, states
from tests.support.locations.histories import History, key_of, local

from statelog.state.reader import StateReader


class Exported:
    """A location, and the files that `export` has written of it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.location, self.out = str(folder / "state"), folder / "out"
        self.history = History(f"edit files {seed}", local(self.location))
        self.history.run(6)
        self.names = [
            variable.name for variable in self.history.model.schema.states if not variable.dropped
        ]

    def file(self, name: str) -> str:
        return str(self.out / f"{name}.parquet")

    def set(self) -> list[str]:
        return [part for name in self.names for part in ("--set", f"{name}={self.file(name)}")]

    def rows(self) -> dict[str, Any]:
        """Return the rows that have not expired at the time of the export."""
        return states(self.history)


@pytest.fixture(params=range(4))
def exported(request: pytest.FixtureRequest, tmp_path: Path, call) -> Exported:
    made = Exported(tmp_path, request.param)
    call("read", made.location, "--to", str(made.out))
    return made


def test_an_edit_by_exported_files_changes_nothing(call, exported: Exported) -> None:
    before = exported.rows()
    report = call.lines("edit", exported.location, *exported.set(), "--apply")[0]
    counts = report["counts"]
    assert (counts["inserted"], counts["deleted"]) == (0, 0)
    assert exported.rows() == before
    if not any(variable.ttl_ms for variable in exported.history.model.schema.states):
        assert report["checkpoint_id"] is None


def test_a_later_state_is_brought_back_from_its_files(call, exported: Exported) -> None:
    with StateReader.open(exported.location) as reader:
        expected = {name: exported_rows(exported, name) for name in exported.names}
        assert reader.checkpoint_id == exported.history.checkpoint_id
    exported.history.micro_batch()
    exported.history.micro_batch()
    if [
        variable.name for variable in exported.history.model.schema.states if not variable.dropped
    ] != (exported.names):
        pytest.skip("another schema")
    planned = call("edit", exported.location, *exported.set(), "--delete-others")
    assert "This was a dry run" in planned
    report = call.lines("edit", exported.location, *exported.set(), "--delete-others", "--apply")[0]
    assert report["checkpoint_id"] == exported.history.checkpoint_id + 2  # its claim comes before
    call("read", exported.location, "--to", str(exported.out / "again"))
    again = Exported.__new__(Exported)
    again.out = exported.out / "again"
    now_ms = restarted(exported.history).now_ms
    for name, rows in expected.items():
        assert alive(exported_rows(again, name), now_ms) == alive(rows, now_ms)
    repeated = call("edit", exported.location, *exported.set(), "--delete-others", "--apply")
    assert " 0 inserted, 0 updated, 0 deleted" in repeated


def exported_rows(exported: Exported, name: str) -> list[dict[str, Any]]:
    table = pq.read_table(exported.file(name))
    places = [
        column
        for column in ("position", "user_key.u", "fires_at_ms")
        if column in table.column_names
    ]
    return table.sort_by([(column, "ascending") for column in ("key.k", *places)]).to_pylist()


def alive(rows: list[dict[str, Any]], now_ms: int) -> list[dict[str, Any]]:
    return [
        {name: part for name, part in row.items() if name != "position"}
        for row in rows
        if (row.get("expires_at_ms") or now_ms + 1) > now_ms
    ]


@pytest.fixture
def job(tmp_path: Path) -> Exported:
    """Return a location with a variable `total`, and its files."""
    for seed in range(50):
        made = Exported(tmp_path / str(seed), seed)
        if "total" in made.names and states(made.history)["total"]:
            return made
    raise AssertionError("no seed has one")


def total(job: Exported, numbers: list[int], *, nested: bool = False) -> pa.Table:
    schema = job.history.model.schema
    value = schema.states[schema.state_id("total")].value_schema
    keys = [dict(zip(("k", "name"), key_of(number), strict=True)) for number in numbers]
    values = pa.array([{}] * len(numbers), pa.struct(list(value)))
    columns = {
        "key": pa.array(keys, pa.struct([("k", pa.int32()), ("name", pa.string())])),
        "value": values,
    }
    table = pa.table(columns)
    return table if nested else table.flatten()


@pytest.mark.parametrize("nested", [False, True])
def test_a_batch_computation_is_the_state_of_its_keys(call, job: Exported, nested: bool) -> None:
    folder = job.out / "spark"
    folder.mkdir(parents=True)
    (folder / "_SUCCESS").touch()
    pq.write_table(total(job, [1, 2], nested=nested), folder / "part-0.parquet")
    pq.write_table(total(job, [3, 4], nested=nested), folder / "part-1.parquet")
    before = job.rows()
    call("edit", job.location, "--set", f"total={folder}", "--delete-others", "--apply")
    after = states(job.history)
    assert sorted(after["total"]) == [1, 2, 3, 4]
    assert all(set(rows[0][1].values()) == {None} for rows in after["total"].values())
    assert {name: rows for name, rows in after.items() if name != "total"} == {
        name: rows for name, rows in before.items() if name != "total"
    }


def test_the_keys_of_a_file_are_deleted(call, job: Exported) -> None:
    victims = sorted(job.rows()["total"])[:2]
    file = job.out / "keys.parquet"
    job.out.mkdir()
    pq.write_table(total(job, victims), file)
    report = call.lines("edit", job.location, "--delete", str(file), "--apply")[0]
    assert report["counts"]["deleted"] == 2
    assert not any(number in rows for rows in states(job.history).values() for number in victims)


def test_a_wrong_file_is_refused_and_nothing_is_changed(call, job: Exported) -> None:
    job.out.mkdir()
    file = job.out / "f.parquet"

    def refused(table: pa.Table | None, *arguments: str) -> str:
        if table is not None:
            pq.write_table(table, file)
        return call("edit", job.location, *arguments, "--apply", status=2)

    rows = total(job, [1, 2])
    at = ("--set", f"total={file}")
    assert "2 rows for 1 keys" in refused(total(job, [1, 1]), *at)
    assert "no column 'key.name'" in refused(rows.drop_columns(["key.name"]), *at)
    assert "a column 'x'" in refused(rows.append_column("x", pa.array([1, 2])), *at)
    text = rows.set_column(0, "key.k", pa.array(["one", "two"]))
    assert "values of the wrong type" in refused(text, *at)
    assert "not have a state variable" in refused(rows, "--set", f"other={file}")
    assert "VARIABLE=PATH" in refused(None, "--set", "total")
    assert "twice" in refused(rows, *at, *at)
    assert "no such file" in refused(None, "--set", "total=/nowhere")
    assert "nothing to edit" in refused(None)
    assert "--delete-others requires" in refused(None, "--delete", str(file), "--delete-others")
    file.write_bytes(b"no Parquet")
    assert "cannot be read as Parquet" in refused(None, *at)
    with StateReader.open(job.location) as reader:
        assert reader.checkpoint_id == job.history.checkpoint_id
