"""How calls name a checkpoint and a state location, which may be given as a checkpointLocation."""

import datetime as dt
import json
from pathlib import Path

import pytest
from tests.support.locations.histories import History, key_of, local
from tests.support.locations.stored_job import StoredJob

import statelog
from statelog.checkpoint.history import open_state
from statelog.checkpoint.listing import CheckpointName
from statelog.checkpoint.retained import Tag, TagKind
from statelog.checkpoint.tags import put_tag
from statelog.errors import CheckpointError, UsageError
from statelog.state.reader import StateReader
from statelog.store import open_store


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> StoredJob:
    """Return a job with the checkpoints 2, 3 and 4, and the tag `stable` of checkpoint 3."""
    job = StoredJob("named", tmp_path_factory.mktemp("job"))
    for _ in range(4):
        job.micro_batch()
    statelog.tag(location_of(job), "stable", checkpoint=3)
    return job


def location_of(job: StoredJob) -> str:
    return str(job.folder.parent / "state")


def created(job: StoredJob, checkpoint_id: int) -> dt.datetime:
    with statelog.open(location_of(job)) as state:
        times = {item.checkpoint_id: item.created_at_ms or 0 for item in state.checkpoints()}
    return dt.datetime.fromtimestamp(times[checkpoint_id] / 1000, dt.UTC)


def names(job: StoredJob, checkpoint_id: int) -> list[CheckpointName]:
    """Return all names of a checkpoint of the job."""
    time = created(job, checkpoint_id)
    berlin = time.astimezone(dt.timezone(dt.timedelta(hours=1)))
    word = {2: "earliest", 3: "stable", 4: "latest"}[checkpoint_id]
    bare = time.replace(tzinfo=None)
    times: list[CheckpointName] = [time, bare, time.isoformat(), berlin.isoformat(), f"{bare}"]
    return [checkpoint_id, str(checkpoint_id), word, *times]


@pytest.mark.parametrize("checkpoint_id", [2, 3, 4])
def test_state_is_read_as_of_each_name(job, checkpoint_id):
    with statelog.open(location_of(job)) as state:
        expected = state.table("$timers", checkpoint_id)
        changed = state.changes(2, checkpoint_id)
        for name in names(job, checkpoint_id):
            assert state.reader(name).checkpoint_id == checkpoint_id, name
            assert state.table("$timers", name).equals(expected), name
            assert state.changes("earliest", name).equals(changed), name
            assert len(list(state.feed(name, "latest"))) == len(list(state.feed(checkpoint_id)))


def test_each_verb_takes_each_name(call, job, tmp_path):
    location = location_of(job)
    for number, name in enumerate(map(str, names(job, 3))):
        option = ("--checkpoint", name, "--json")
        read = json.loads(call("read", location, "--to", str(tmp_path / str(number)), *option,
                               "$timers"))  # fmt: skip
        assert read["checkpoint_id"] == 3
        assert call("read", location, "$timers", *option)
        assert call("diff", location, "earliest", name, "--json") == call(
            "diff", location, "2", "3", "--json"
        )
        copied = json.loads(call("copy", location, str(tmp_path / f"copy {number}"), *option))
        assert max(copied["checkpoints"]) == 3
        tagged = json.loads(call("tag", location, f"tag-{number}", *option))
        assert tagged["checkpoint_id"] == 3
        place = str(tmp_path / f"fork {number}" / "statelog")
        forked = json.loads(call("fork", location, place, *option))
        assert (forked["checkpoint_id"], forked["batch_id"]) == (3, 2)


def test_a_fork_of_a_tag_uses_the_source_position_of_the_tag(tmp_path):
    job = StoredJob("position", tmp_path)
    job.micro_batch()
    statelog.tag(location_of(job), "stable")
    (job.folder / "commits" / "0").unlink()  # as Spark does after more micro-batches
    forked = statelog.fork(location_of(job), tmp_path / "new" / "statelog", checkpoint="stable")
    assert forked.batch_id == 0


def test_a_name_without_a_checkpoint_is_rejected(call, job, tmp_path):
    location = location_of(job)
    for name in ("yesterday", "-1", "9" * 5000, "", "stable "[:3]):
        said = call("read", location, "--checkpoint", name, status=2)
        assert "must be an id, a tag of" in said
        assert "stable" in said
    said = call("read", location, "--checkpoint", "2020-01-01", status=1)
    assert "retains no checkpoint that was created at or before 2020-01-01" in said
    with statelog.open(location) as state:
        for given in (-1, 1.5, True):
            with pytest.raises(UsageError, match="checkpoint"):
                state.reader(given)
    with statelog.open(open_store(tmp_path).local_root or "") as state:
        for word in ("latest", "earliest"):
            with pytest.raises(CheckpointError, match="does not contain a checkpoint"):
                state.reader(word)


@pytest.fixture
def query(tmp_path: Path) -> Path:
    """A checkpointLocation with state; the files of Spark are not looked at."""
    (tmp_path / "offsets").mkdir()
    History("open", local(tmp_path / "statelog")).run(3)
    return tmp_path


def test_python_opens_the_state_of_a_checkpoint_location(query):
    with statelog.open(query) as by_query, statelog.open(query / "statelog") as by_state:
        assert by_query.checkpoints() == by_state.checkpoints() != []
    with StateReader.open(query) as reader:
        assert reader.store.url.endswith("/statelog")


def test_the_command_line_opens_the_state_of_a_checkpoint_location(call, query):
    for words in (["checkpoints", "--json"], ["verify"], ["info", "--json"]):
        by_query, by_state = (
            call(words[0], str(place), *words[1:]) for place in (query, query / "statelog")
        )
        assert by_query.replace(str(query), "") == by_state.replace(f"{query}/statelog", "")
    newest = statelog.open(query).checkpoints()[-1].checkpoint_id
    tag = Tag(kind=TagKind.TAG, name="kept", checkpoint_id=newest)
    put_tag(local(query / "statelog"), tag, clock_ms=lambda: 0)
    assert "kept" in call("tag", str(query))
    call("tag", str(query), "kept", "--remove", "--apply")
    assert [] == statelog.tags(query)


def test_an_edit_by_the_checkpoint_location_changes_the_state(query):
    before = sorted(path.name for path in query.iterdir())
    report = statelog.forget(query, key_of(1), apply=True)
    assert report.base_id == statelog.open(query / "statelog").checkpoints()[-2].checkpoint_id
    assert before == sorted(path.name for path in query.iterdir())


def test_a_state_location_wins_over_a_folder_inside_it(query):
    state = query / "statelog"
    History("inner", local(state / "statelog")).run(1)
    assert open_state(state).url == open_state(query).url


def test_a_folder_without_state_is_named(call, tmp_path):
    (tmp_path / "statelog").mkdir()
    said = call("checkpoints", str(tmp_path), status=2)
    assert "neither it nor its subfolder statelog contains a checkpoint or a claim" in said
    with statelog.open(tmp_path) as state, pytest.raises(CheckpointError, match="contain a checkp"):
        state.variables()
