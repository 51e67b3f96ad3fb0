"""A recording is input: what it names is never imported, called, opened or printed raw."""

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.forgeries.recordings import forge_recordings
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import FrameSteps, OtherSteps, Steps, steps_job

from statelog.errors import CorruptionError, UsageError
from statelog.extensions.testing.replay import debug_step, replay
from statelog.spark.query.record import Record

pytestmark = pytest.mark.campaign


def recorded(folder: Path, *, pandas: bool = False) -> RecordedJob:
    processor = FrameSteps() if pandas else Steps()
    job = steps_job(folder, processor, Record(keys=(("k1",),)), pandas=pandas)
    job.run([("k1", "add", 3), ("k1", "yield", 0)], 1000)
    return job


def trap(folder: Path, name: str = "trap.py") -> Path:
    """Write a module that leaves a file where it is imported, and has a processor."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(
        f"open({str(folder / 'ran')!r}, 'w').close()\n"
        "from tests.support.jobs.recorded_processors import Steps\nclass Trap(Steps):\n    pass\n"
    )
    return file


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what an import leaves behind."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("trap", "replayed_trap"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("trap", "replayed_trap"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("has_source", [False, True])
@pytest.mark.parametrize(
    "name", ["os:abort", "trap:Trap", "tests.support.jobs.recorded_processors:Steps"]
)
def test_no_name_of_a_recording_is_imported_or_called(
    tmp_path: Path, name: str, has_source: bool, imports: None,
    monkeypatch: pytest.MonkeyPatch, call,
) -> None:  # fmt: skip
    job = recorded(tmp_path / "state")
    file = trap(tmp_path / "state")
    monkeypatch.chdir(tmp_path / "state")
    monkeypatch.setattr(os, "abort", lambda: pytest.fail("called"))
    forge_recordings(job.store, processor=name, source=str(file) if has_source else "")
    said = call("replay", ".", "k1", status=2)
    assert "--processor" in said
    assert f"names {name!r}" in said
    assert (f"of the file '{file}'" in said) is has_source
    with pytest.raises(UsageError, match=f"names {name!r}"):
        replay(job.location, "k1")
    assert not (tmp_path / "state" / "ran").exists()


def test_modules_are_not_looked_up_in_the_location(
    tmp_path: Path, imports: None, monkeypatch: pytest.MonkeyPatch, call
) -> None:
    job = recorded(tmp_path / "state")
    trap(tmp_path / "state")
    trap(tmp_path / "state" / "recordings")
    for folder, location in ((".", "."), ("recordings", "..")):
        monkeypatch.chdir(tmp_path / "state" / folder)
        said = call("replay", location, "k1", "--processor", "trap:Trap", status=2)
        assert "'trap' cannot be imported" in said
    assert not list(tmp_path.rglob("ran"))
    jobs = trap(tmp_path / "jobs").parent
    (jobs / "colorsys.py").write_text("raise AssertionError('of the working directory')")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.chdir(jobs)
    call("replay", job.location, "k1", "--processor", "trap:Trap")
    assert (jobs / "ran").exists()
    import colorsys  # the installed one, though the working directory has another

    assert colorsys.rgb_to_hsv


@pytest.mark.parametrize("name", ["udt", "pyClass", "serializedClass"])
def test_user_defined_types_of_a_recording_are_not_loaded(
    tmp_path: Path, name: str, imports: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = recorded(tmp_path / "state", pandas=True)
    trap(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (step,) = replay(job.location, "k1", processor=FrameSteps())
    columns = json.loads(step.recorded.task.frames["columns"])
    udt = {"type": "udt", "pyClass": "trap.Trap", "serializedClass": "gAR9lC4="}
    if name != "udt":
        udt = {name: udt[name], "type": "udt"}
    columns["fields"][0]["type"] = {"type": "array", "elementType": udt, "containsNull": True}
    frames = {**step.recorded.task.frames, "columns": json.dumps(columns)}
    forge_recordings(job.store, frames=frames)
    with pytest.raises(CorruptionError, match="frame settings"):
        replay(job.location, "k1", processor=FrameSteps())
    assert not (tmp_path / "ran").exists()


def test_the_debugger_reads_no_pdbrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = recorded(tmp_path / "state")
    monkeypatch.chdir(tmp_path / "state")
    Path(".pdbrc").write_text("import os; os.mkdir('ran')\n")
    (step,) = replay(job.location, "k1", processor=OtherSteps())
    assert step.differences
    said = io.StringIO()
    debug_step(step, OtherSteps(), stdin=io.StringIO("continue\n"), stdout=said)
    assert "handleInputRows()" in said.getvalue()
    assert not Path("ran").exists()


@pytest.mark.parametrize("changes", [{"time_mode": "x"}, {"row_format": "pandas", "frames": {}}])
def test_settings_that_no_query_writes_are_damage(tmp_path: Path, changes: dict[str, Any]) -> None:
    job = recorded(tmp_path / "state")
    forge_recordings(job.store, **changes)
    with pytest.raises(CorruptionError):
        replay(job.location, "k1", processor=Steps())
