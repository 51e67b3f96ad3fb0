"""`statelog edit`: what `export` wrote, changed by a batch computation, is the state afterwards."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.locations.edited_history import restarted, states
from tests.support.locations.histories import History, key_of, live_names, local

from statelog.state.reader import StateReader


class Exported:
    """A location, and the files that `export` has written of it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.location, self.out = str(folder / "state"), folder / "out"
        self.history = History(f"edit files {seed}", local(self.location))
        self.history.run(6)
        self.names = live_names(self.history.model)

    def set(self) -> list[str]:
        files = [f"{name}={self.out / f'{name}.parquet'}" for name in self.names]
        return [word for file in files for word in ("--set", file)]


@pytest.fixture(params=range(4))
def exported(request: pytest.FixtureRequest, tmp_path: Path, call) -> Exported:
    exported = Exported(tmp_path, request.param)
    call("read", exported.location, "--to", str(exported.out))
    return exported


def test_an_edit_by_exported_files_changes_nothing(call, exported: Exported) -> None:
    before = states(exported.history)
    report = call.lines("edit", exported.location, *exported.set(), "--apply")[0]
    counts = report["counts"]
    assert (counts["inserted"], counts["deleted"]) == (0, 0)
    assert states(exported.history) == before
    if not any(variable.ttl_ms for variable in exported.history.model.schema.states):
        assert report["checkpoint_id"] is None


def test_a_later_state_is_brought_back_from_its_files(call, exported: Exported) -> None:
    history = exported.history

    history.micro_batch()
    history.micro_batch()
    if live_names(history.model) != exported.names:
        pytest.skip("the schema changed")
    command = ["edit", exported.location, *exported.set(), "--delete-others"]
    assert "This was a dry run" in call(*command)
    report = call.lines(*command, "--apply")[0]
    assert report["checkpoint_id"] == history.checkpoint_id + 2  # its claim comes before
    call("read", exported.location, "--to", str(exported.out / "again"))
    now_ms = restarted(history).now_ms
    for name in exported.names:
        expected = alive(exported.out / f"{name}.parquet", now_ms)
        assert alive(exported.out / "again" / f"{name}.parquet", now_ms) == expected
    assert " 0 inserted, 0 updated, 0 deleted" in call(*command, "--apply")


def alive(file: Path, now_ms: int) -> list[dict[str, Any]]:
    """Return the rows of a file that have not expired, in order and without their positions."""
    table = pq.read_table(file)
    places = {"position", "user_key.u", "fires_at_ms"}.intersection(table.column_names)
    rows = table.sort_by([(column, "ascending") for column in ("key.k", *places)]).to_pylist()
    return [
        {name: value for name, value in row.items() if name != "position"}
        for row in rows
        if (row.get("expires_at_ms") or now_ms + 1) > now_ms
    ]


@pytest.fixture
def job(tmp_path: Path) -> Exported:
    """Return a location with a variable `total`, and its files."""
    for seed in range(50):
        job = Exported(tmp_path / str(seed), seed)
        if "total" in job.names and states(job.history)["total"]:
            job.out.mkdir()
            return job
    raise AssertionError("no seed has it")


def total(job: Exported, numbers: list[int], *, nested: bool = False) -> pa.Table:
    schema = job.history.model.schema
    value = schema.states[schema.state_id("total")].value_schema
    keys = [dict(zip(("k", "name"), key_of(number), strict=True)) for number in numbers]
    values = pa.array([{}] * len(numbers), pa.struct(list(value)))
    key_type = pa.struct([("k", pa.int32()), ("name", pa.string())])
    table = pa.table({"key": pa.array(keys, key_type), "value": values})
    return table if nested else table.flatten()


@pytest.mark.parametrize("nested", [False, True])
def test_a_batch_computation_is_the_state_of_its_keys(call, job: Exported, nested: bool) -> None:
    folder = job.out / "spark"
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    pq.write_table(total(job, [1, 2], nested=nested), folder / "part-0.parquet")
    pq.write_table(total(job, [3, 4], nested=nested), folder / "part-1.parquet")
    before = states(job.history)
    call("edit", job.location, "--set", f"total={folder}", "--delete-others", "--apply")
    after = states(job.history)
    totals = after["total"]
    assert sorted(totals) == [1, 2, 3, 4]
    assert all(set(rows[0][1].values()) == {None} for rows in totals.values())
    assert after == {**before, "total": totals}


def test_the_keys_of_a_file_are_deleted(call, job: Exported) -> None:
    victims = sorted(states(job.history)["total"])[:2]
    file = job.out / "keys.parquet"
    pq.write_table(total(job, victims), file)
    report = call.lines("edit", job.location, "--delete", str(file), "--apply")[0]
    assert report["counts"]["deleted"] == 2
    assert not any(number in rows for rows in states(job.history).values() for number in victims)


def test_a_wrong_file_is_refused_and_nothing_is_changed(call, job: Exported) -> None:
    file = job.out / "f.parquet"

    def refused(table: pa.Table | None, *arguments: str) -> str:
        if table is not None:
            pq.write_table(table, file)
        return call("edit", job.location, *arguments, "--apply", status=2)

    rows = total(job, [1, 2])
    set_total = ("--set", f"total={file}")
    assert "2 rows for 1 keys" in refused(total(job, [1, 1]), *set_total)
    assert "lacks the column 'key.name'" in refused(rows.drop_columns(["key.name"]), *set_total)
    assert "unknown column 'x'" in refused(rows.append_column("x", pa.array([1, 2])), *set_total)
    text = rows.set_column(0, "key.k", pa.array(["one", "two"]))
    assert "values of the wrong type" in refused(text, *set_total)
    assert "not have a state variable" in refused(rows, "--set", f"other={file}")
    assert "VARIABLE=PATH" in refused(None, "--set", "total")
    assert "twice" in refused(rows, *set_total, *set_total)
    assert "no such file" in refused(None, "--set", "total=/nowhere")
    assert "nothing to edit" in refused(None)
    assert "--delete-others requires" in refused(None, "--delete", str(file), "--delete-others")
    file.write_bytes(b"no Parquet")
    assert "cannot be read as Parquet" in refused(None, *set_total)
    with StateReader.open(job.location) as reader:
        assert reader.checkpoint_id == job.history.checkpoint_id
