"""A checkpointLocation is taken where a state location is expected, and never the other way round."""

from pathlib import Path

import pytest
from tests.support.locations.histories import History, key_of, local

import statelog
from statelog.checkpoint.history import open_state
from statelog.checkpoint.retained import Tag, TagKind
from statelog.checkpoint.tags import put_tag
from statelog.errors import CheckpointError
from statelog.state.reader import StateReader


@pytest.fixture
def query(tmp_path: Path) -> Path:
    """A checkpointLocation with state; the files of Spark are not looked at."""
    (tmp_path / "offsets").mkdir()
    History("open", local(tmp_path / "statelog")).run(3)
    return tmp_path


def test_python_opens_the_state_of_a_checkpoint_location(query: Path) -> None:
    with statelog.open(query) as by_query, statelog.open(query / "statelog") as by_state:
        assert by_query.checkpoints() == by_state.checkpoints() != []
    with StateReader.open(query) as reader:
        assert reader.store.url.endswith("/statelog")


def test_the_command_line_does_so_too(call, query: Path) -> None:
    for words in (["checkpoints", "--json"], ["verify"], ["info", "--json"]):
        by_query, by_state = (
            call(words[0], str(place), *words[1:]) for place in (query, query / "statelog")
        )
        assert by_query.replace(str(query), "") == by_state.replace(f"{query}/statelog", "")
    newest = statelog.open(query).checkpoints()[-1].checkpoint_id
    put_tag(
        local(query / "statelog"),
        Tag(kind=TagKind.TAG, name="kept", checkpoint_id=newest),
        clock_ms=lambda: 0,
    )
    assert "kept" in call("tag", str(query))
    call("tag", str(query), "kept", "--remove", "--apply")
    assert [] == statelog.tags(query)


def test_an_edit_by_the_checkpoint_location_changes_the_state(query: Path) -> None:
    before = sorted(path.name for path in query.iterdir())
    report = statelog.forget(query, key_of(1), apply=True)
    assert report.base_id == statelog.open(query / "statelog").checkpoints()[-2].checkpoint_id
    assert before == sorted(path.name for path in query.iterdir())


def test_a_state_location_wins_over_a_folder_inside_it(query: Path) -> None:
    state = query / "statelog"
    History("inner", local(state / "statelog")).run(1)
    assert open_state(state).url == open_state(query).url


def test_a_folder_without_state_is_named(call, tmp_path: Path) -> None:
    (tmp_path / "statelog").mkdir()
    said = call("checkpoints", str(tmp_path), status=2)
    assert "neither it nor its subfolder statelog contains a checkpoint or a claim" in said
    with statelog.open(tmp_path) as state, pytest.raises(CheckpointError, match="no checkpoint"):
        state.variables()
