"""A query whose location is encrypted, and everything a person does to such a location."""

import base64
from pathlib import Path

import pytest
from tests.support.locations.sequence_entries import committed
from tests.support.spark.processors import Totals, TotalsModel
from tests.support.spark.streams import FREQUENT_SNAPSHOTS, BatchSource, Job

import statelog as sl
from statelog.cli.main import run
from statelog.errors import InvalidOptionsError

BATCHES = [[(f"customer-{key:04}", key * batch) for key in range(60)] for batch in range(4)]


def stored(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def command(*arguments: str, status: int = 0) -> None:
    assert run(arguments) == status, arguments


def test_an_encrypted_location_is_used_like_any_other(spark, tmp_path, monkeypatch, capsys):
    keys = tmp_path / "keys"
    for name, key in ((keys, bytes(32)), (tmp_path / "other", bytes(range(32)))):
        name.write_text(base64.b64encode(key).decode())
    # From a file: Spark's workers have the environment in which its JVM was started.
    encryption = {"encryption": f"file:{keys}"}
    source = BatchSource(spark, tmp_path / "in", "key string, amount bigint")
    options = {
        "storageOptions": encryption,
        **FREQUENT_SNAPSHOTS,
        "stream.data-inline-threshold": 500,  # some changes and output in files
        "state.local-directory": str(tmp_path / "local"),
    }
    output = "key string, total bigint, rows bigint"
    job = Job(source, tmp_path, ["key"], Totals(), output, options)
    model = TotalsModel()
    for tasks, batches in ((1, BATCHES[:2]), (3, BATCHES[2:])):
        source.add_all(batches)
        job.run(tasks=tasks)
        assert job.take_in_order() == [model.apply(rows) for rows in batches]
    state = str(job.state)
    assert {"chk-5", "dstl", "taskowned"} <= {path.name for path in job.state.iterdir()}
    assert not [name for name, content in stored(job.state).items() if b"customer-" in content]

    with pytest.raises(InvalidOptionsError, match="is encrypted, but no keys were given"):
        sl.open(state).get("total", ("customer-0007",))
    opened = sl.open(state, storage_options=encryption)
    assert opened.get("total", ("customer-0007",))["total"] == 42
    frame = spark.read.format("statelog").option("variable", "total")
    read = frame.option("storageOptions.encryption", f"file:{keys}").load(state)
    assert read.count() == len(model.totals)

    monkeypatch.setenv("STATELOG_ENCRYPTION", f"file:{keys}")
    command("verify", state)
    command("checkpoints", state)
    command("changelog", f"{state}/chk-5/_metadata")
    command("get", state, "total", "customer-0007")
    command("read", state, "total")
    command("get", "--history", state, "total", "customer-0007")
    before, after = committed(Path(state))[-2:]
    command("diff", state, str(before), str(after))
    command("sql", state, "select count(*) from total")
    command("read", state, "--to", str(tmp_path / "rows"))
    command("report", state, "-o", str(tmp_path / "report.html"))
    command("gc", state)
    command("verify", state, "--repair")
    command("tag", state, "before")
    command("audit", state)
    fork = str(tmp_path / "fork")
    command("fork", state, fork, "--new-checkpoint-location", str(tmp_path / "fork-query"))
    command("verify", fork)
    edited = str(tmp_path / "edited")
    command("copy", state, edited)
    command("edit", edited, "--set", f"total={tmp_path / 'rows' / 'total.parquet'}", "--apply")
    command("tag", edited, "before", "--remove", "--apply")
    command("forget", edited, "customer-0007", "--now", "--apply")
    assert sl.open(edited).get("total", ("customer-0007",)) is None
    command("verify", edited)
    # A new key, then no encryption, then with a key again.
    for number, encryption_of_copy in enumerate((f"file:{tmp_path}/other", "none", f"file:{keys}")):
        copy = str(tmp_path / f"copy-{number}")
        command(
            "copy", fork if number == 0 else state, copy, "--new-encryption", encryption_of_copy
        )
        plain = [name for name, content in stored(Path(copy)).items() if b"customer-" in content]
        assert bool(plain) is (encryption_of_copy == "none")
        with monkeypatch.context() as there:
            there.setenv("STATELOG_ENCRYPTION", encryption_of_copy)
            command("verify", copy)
            command("get", copy, "total", "customer-0007")
            if encryption_of_copy == "none":
                there.delenv("STATELOG_ENCRYPTION")
                command("verify", copy)
                there.setenv("STATELOG_ENCRYPTION", f"file:{keys}")
                command("get", copy, "total", "customer-0007", status=1)
    capsys.readouterr()
