"""Events of a query for OpenLineage, as its own client writes them to a file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport

from statelog.lineage import LineageRun, dataset_of


@dataclass
class Batch:
    """The figures of a micro-batch."""

    batch_id: int
    checkpoint_id: int
    rows: int = 10
    output_rows: int = 4
    late_rows: int = 1
    state_entries: int = 7


class Time:
    """A clock that a test moves."""

    seconds = 100

    def now_ns(self) -> int:
        return self.seconds * 10**9


class Unreachable:
    """A client whose server is down."""

    def emit(self, event: object) -> None:
        raise ConnectionError("no route to https://me:secret@lineage.example")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def client_of(file: Path) -> OpenLineageClient:
    config = FileConfig(log_file_path=str(file), append=True)
    return OpenLineageClient(transport=FileTransport(config))


def events_in(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_run_emits_start_running_and_complete(written: Path) -> None:
    clock = Time()
    run = LineageRun(
        "totals",
        "shop",
        inputs=["s3://shop/events", "kafka://broker:9092/orders"],
        outputs=["/data/totals"],
        state_location="s3://shop/state/totals",
        interval_s=30,
        client=client_of(written),
        clock=clock,
    )
    with run:
        run.progress(Batch(0, 2))
        for second in range(1, 60):  # two micro-batches a second are not 60 events
            clock.seconds += 1
            run.progress(Batch(second, second + 2))
    events = events_in(written)
    assert [event["eventType"] for event in events] == [
        "START",
        "RUNNING",
        "RUNNING",
        "COMPLETE",
    ]
    assert {event["run"]["runId"] for event in events} == {run.run_id}
    assert {(event["job"]["namespace"], event["job"]["name"]) for event in events} == {
        ("shop", "totals")
    }
    assert events[0]["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert [(each["namespace"], each["name"]) for each in events[0]["inputs"]] == [
        ("s3://shop", "events"),
        ("kafka://broker:9092", "orders"),
    ]
    assert [(each["namespace"], each["name"]) for each in events[0]["outputs"]] == [
        ("file", "/data/totals"),
        ("s3://shop", "state/totals"),
    ]
    assert "statelog" not in events[0]["run"]["facets"]
    running = events[1]["run"]["facets"]["statelog"]
    assert (running["batchId"], running["checkpointId"], running["rows"]) == (0, 2, 10)
    complete = events[-1]["run"]["facets"]["statelog"]
    figures = {name: value for name, value in complete.items() if not name.startswith("_")}
    assert figures == {
        "batchId": 59,
        "checkpointId": 61,
        "stateEntries": 7,
        "batches": 60,
        "rows": 600,
        "outputRows": 240,
        "lateRows": 60,
    }


def test_an_error_emits_fail_without_its_secrets(written: Path) -> None:
    with (
        pytest.raises(ValueError, match="boom"),
        LineageRun("totals", client=client_of(written)) as run,
    ):
        run.progress(Batch(0, 2))
        raise ValueError("boom at https://me:secret@host/path")
    last = events_in(written)[-1]
    assert last["eventType"] == "FAIL"
    message = last["run"]["facets"]["errorMessage"]["message"]
    assert message.startswith("ValueError: boom at https://")
    assert "secret" not in message
    assert last["run"]["facets"]["statelog"]["checkpointId"] == 2


def test_ctrl_c_emits_abort(written: Path) -> None:
    with pytest.raises(KeyboardInterrupt), LineageRun("totals", client=client_of(written)):
        raise KeyboardInterrupt
    assert [event["eventType"] for event in events_in(written)] == ["START", "ABORT"]


def test_a_server_that_is_down_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with LineageRun("totals", client=Unreachable()) as run:
        run.progress(Batch(0, 2))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "the event START of the job totals was not sent" in lines[0]
    assert not any("secret" in line for line in lines)


@pytest.mark.parametrize(
    ("url", "dataset"),
    [
        ("s3://bucket/a/b/", ("s3://bucket", "a/b")),
        ("s3://bucket", ("s3://bucket", "/")),
        ("file:///a/b", ("file", "/a/b")),
        ("/a/b", ("file", "/a/b")),
        (
            "abfss://c@account.dfs.core.windows.net/a",
            ("abfss://c@account.dfs.core.windows.net", "a"),
        ),
    ],
)
def test_names_of_datasets(url: str, dataset: tuple[str, str]) -> None:
    assert dataset_of(url) == dataset


def test_a_dataset_has_no_secret_of_its_url() -> None:
    assert "secret" not in " ".join(dataset_of("postgres://me:secret@db:5432/shop"))
