"""Rewinds of a query's files and state, without Spark: what is refused, and every step repeated."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.forgeries.foreign_places import forge_checkpoints, with_properties
from tests.support.locations.checkpoints import ManualClock, put_named_tag, run_checkpoint, started
from tests.support.locations.forked_query import sweep
from tests.support.locations.rewound_query import ALL, Query
from tests.support.locations.stored_job import StoredJob

from statelog.checkpoint.history import Entries
from statelog.checkpoint.listing import list_checkpoints
from statelog.checkpoint.query_files import StoredQuery
from statelog.errors import CheckpointError, CorruptionError, FencedError, UsageError
from statelog.extensions.operations.rewind import (
    apply_rewind,
    plan_rewind,
    rewind_points,
)
from statelog.extensions.spark_source.readers import Location, checkpoint_of_batch
from statelog.format.checkpoint_metadata import OUTPUT_TAG
from statelog.model import CompletedCheckpoint, TaskStateSnapshot
from statelog.store import open_store


@pytest.fixture
def query(tmp_path: Path) -> Query:
    query = Query(tmp_path)
    query.run(0, 4)
    return query


def newest_of(query: Query) -> CompletedCheckpoint:
    newest = Entries(query.state).newest()
    assert newest is not None
    return newest


def test_a_rewind_gives_the_state_of_the_batch_and_removes_what_came_after(query: Query) -> None:
    old = query.driver
    assert 7 == query.rewind(2), "6 is the claim of the rewind"
    newest = newest_of(query)
    assert (7, 3, 2) == (newest.checkpoint_id, newest.parent_id, newest.properties["batch_id"])
    assert [1, 2, 3] == [handle.checkpoint_id for handle in newest.log]
    assert (2, 3, 7) == newest.retained
    assert b"rows of 2" == Entries(query.state).load(7).sections.get(OUTPUT_TAG)
    for folder in ("offsets", "commits", "sources/0"):
        assert [".0.crc", ".1.crc", ".2.crc", "0", "1", "2"] == query.names(folder)
    assert [".0.crc", "0"] == query.names("sources/1")  # where Kafka began is no log
    assert ("chk-4/_metadata", "chk-5/_metadata") == sweep(query.state, dry_run=True).deleted
    with pytest.raises(FencedError):
        run_checkpoint(old, old.next_checkpoint_id, [TaskStateSnapshot(ALL, None)])
    plan = plan_rewind(query.stored, query.state, 2)
    assert ((), False) == (plan.files, plan.changes_state)
    points = rewind_points(query.stored, query.state)
    assert [(1, ""), (2, "")] == [(point.batch_id, point.problem) for point in points]


def test_a_rewind_drops_a_planned_batch_that_did_not_commit(query: Query) -> None:
    query.put("offsets/5", "")  # cut short by a power failure
    query.put("sources/0/5", "")
    query.put("commits/4", "")
    plan = plan_rewind(query.stored, query.state, 4)
    assert not plan.changes_state
    assert ("offsets/5", "offsets/.5.crc") == plan.offsets
    assert ("sources/0/5", "sources/0/.5.crc") == plan.logs
    assert ("commits/4", "commits/.4.crc") == plan.commits
    # The same state is committed again on a new timeline: a sink may have rows of the planned batch.
    assert 7 == apply_rewind(query.stored, query.state, plan, ManualClock())
    newest = newest_of(query)
    assert (5, 6) == (newest.parent_id, newest.timeline.number)
    assert [4, 3, 4] == [
        max(query.stored.numbers(folder)) for folder in ("offsets", "commits", "sources/0")
    ]


def test_a_rewind_to_a_batch_without_input_is_possible(tmp_path: Path) -> None:
    query = Query(tmp_path, idle=(2, 3))
    query.run(0, 5)
    plan = plan_rewind(query.stored, query.state, 3)
    assert (2, True) == (plan.checkpoint_id, plan.changes_state)
    query.rewind(3)
    assert [3, 1] == [max(query.stored.numbers(folder)) for folder in ("offsets", "sources/0")]
    query.put("offsets/4", "\n".join(["v1", "{}", '{"logOffset":1}', '{"topic":{"0":9}}', "4"]))
    with pytest.raises(CheckpointError, match="sources were read in between") as raised:
        plan_rewind(query.stored, query.state, 4)
    assert "subsumed" == raised.value.reason


def test_an_impossible_rewind_is_rejected_and_changes_nothing(query: Query, tmp_path: Path) -> None:
    def refused(to: int, reason: str, message: str) -> None:
        before = query.everything()
        with pytest.raises(CheckpointError, match=message) as raised:
            query.rewind(to)
        assert reason == raised.value.reason
        assert before == query.everything()

    refused(0, "subsumed", "no longer retained: the oldest .* is 2, of batch 1")
    refused(9, "not_found", "does not contain the offsets of batch 9 .only of batches 0 to 4")
    line = json.dumps({"path": "file:///in/x", "timestamp": 3, "batchId": 3})
    (tmp_path / "query/sources/0/3").write_text(f"v1\n{line}\n")
    refused(3, "gap", "batch 3 was planned again")
    assert "planned again" in rewind_points(query.stored, query.state)[2].problem
    (tmp_path / "query/sources/0/1").unlink()
    refused(2, "not_found", "cannot be rewound to entry 2: entry 1 is missing")
    (tmp_path / "query/offsets/1").write_text("")
    with pytest.raises(CorruptionError, match="offsets/1 is empty"):
        query.rewind(1)
    (tmp_path / "query/state/0/1").mkdir(parents=True)
    (tmp_path / "query/state/0/1/2.delta").write_text("x")
    refused(4, "foreign_state", "state of one of Spark's own operators")
    (tmp_path / "query/metadata").write_text('{"id":"other"}')
    refused(4, "other_query", "state of query q; the checkpointLocation belongs to query other")
    (tmp_path / "query/metadata").unlink()
    with pytest.raises(UsageError, match="not the checkpointLocation of a streaming query"):
        query.rewind(4)


def test_a_query_that_commits_during_the_rewind_is_noticed(query: Query) -> None:
    plan = plan_rewind(query.stored, query.state, 2)
    query.run(5, 5)
    with pytest.raises(CheckpointError, match="ran after the rewind was planned") as raised:
        apply_rewind(query.stored, query.state, plan, ManualClock())
    assert "active" == raised.value.reason
    newest = newest_of(query)
    assert (6, 5) == (newest.checkpoint_id, max(query.stored.numbers("offsets")))


def test_a_rewind_passes_over_a_damaged_newest_checkpoint(query: Query, tmp_path: Path) -> None:
    (tmp_path / "state/chk-5/_metadata").write_bytes(b"torn")
    assert 7 == query.rewind(3)
    newest = newest_of(query)
    assert 3 == newest.properties["batch_id"]


def test_the_command_shows_first_and_acts_when_told(call, query: Query, tmp_path: Path) -> None:
    words = ["rewind", str(query.folder), "--state-location", str(tmp_path / "state")]
    to_2 = [*words, "--batch-id", "2"]
    before = query.everything()
    assert "batch 2: checkpoint 3, committed" in call(*words)
    assert [1, 2, 3, 4] == [point["batch_id"] for point in call.lines(*words)]
    text = call(*to_2)
    assert "would delete commits/4" in text
    assert "later checkpoints, up to 5, would be discarded" in text
    assert "This was a dry run" in text
    assert "query may be running" in call(*to_2, "--apply", status=1)
    assert "no longer retained" in call(*words, "--batch-id", "0", status=1)
    assert "--apply requires --batch-id" in call(*words, "--apply", status=2)
    assert "--batch-id" in call(*words, "--batch-id", "-1", status=2)
    assert before == query.everything()
    first, *_ = call.lines(*to_2)
    assert {"path": "commits/4", "action": "would-delete"} == first
    first, *_, last = call.lines(*to_2, "--apply", "--min-idle", "0s")
    assert {"path": "commits/4", "action": "deleted"} == first
    summary = last["summary"]
    assert (2, 7, False) == (summary["batch_id"], summary["continues_from"], summary["dry_run"])
    assert 2 == summary["input_files"]
    assert ["file:///in/3", "file:///in/4"] == summary["missing_files"]
    assert "nothing to do" in call(*to_2, "--apply", "--min-idle", "0s")
    assert "does not exist" in call(*to_2, "--state-location", "/nope", status=2)
    call("rewind", str(tmp_path / "nope"), "--batch-id", "1", status=2)
    said = call("rewind", str(query.folder), "--batch-id", "1", status=2)  # no state next to it
    assert "Pass the query's stateLocation as state_location (--state-location)" in said


def test_the_number_of_a_batch_never_takes_a_checkpoint_that_was_given_up(tmp_path: Path) -> None:
    """Wrong code ran batches 0 to 4; a tag keeps the checkpoint of batch 4."""
    query = Query(tmp_path, retained=2)
    query.run(0, 4)
    put_named_tag(query.state, "wrong", 5)
    query.rewind(3)
    query.entry = 3
    query.driver = started(query.state, retained=2)
    query.run(4, 9)
    query.driver.clean_up()
    (given_up,) = (entry for entry in list_checkpoints(query.state) if entry.is_given_up)
    assert 5 == given_up.checkpoint_id
    assert [8, 9] == [point.batch_id for point in rewind_points(query.stored, query.state)]
    with pytest.raises(CheckpointError, match="batch 4 is no longer retained") as refused:
        plan_rewind(query.stored, query.state, 4)
    assert "subsumed" == refused.value.reason
    state = Location(str(tmp_path / "state")).open()
    with pytest.raises(CheckpointError, match="batch 4") as refused:  # the option batchId
        checkpoint_of_batch(state, 4)
    assert "not_found" == refused.value.reason


@pytest.mark.parametrize("options", [{}, {"backend": "fsspec"}])
@pytest.mark.parametrize("field", ["source_folders", "source_logs"])
def test_a_rewind_stays_in_its_folder(field: str, options: dict[str, Any], tmp_path: Path) -> None:
    """The names of the sources' logs come from metadata, and a rewind deletes files there."""
    pytest.importorskip("fsspec")
    job = StoredJob(2, tmp_path)
    job.micro_batch()
    job.micro_batch()
    name = "../../victim"
    [log] = job.record().to_properties()["source_logs"]  # type: ignore[misc]
    forged = [name] if field == "source_folders" else [{**log, "folder": name}]  # type: ignore[dict-item]
    forge_checkpoints(tmp_path / "state", partial(with_properties, {field: forged}))
    query = StoredQuery(open_store(str(job.folder), storage_options=options))
    with pytest.raises(CorruptionError, match="forged or damaged"):
        plan_rewind(query, job.store, 0)
    with pytest.raises(CorruptionError, match="forged or damaged"):
        rewind_points(query, job.store)
