"""Each command that changes a location, and what it needs before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tests.support.locations.histories import key_of, rows_of
from tests.support.locations.stored_job import StoredJob

import statelog
from statelog.checkpoint import verify_location
from statelog.checkpoint.query_files import StoredQuery
from statelog.checkpoint.retained import Tag, TagKind, list_tags
from statelog.cli.main import run
from statelog.state.reader import StateReader
from statelog.store import PATHS, open_existing_store, open_store

BATCHES = 4
KEY = 9
"""A key that has state in the newest checkpoint."""


class Place:
    """The folders of one trial: `state` and `query` of the job, and what a command makes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state, self.query = str(root / "state"), str(root / "query")
        self.new, self.new_query = str(root / "new"), str(root / "new-query")
        self.out = str(root / "out")

    def call(self, *arguments: str) -> int:
        return run(arguments)


Change = Callable[[Place], int]


def fork(place: Place, *more: str) -> int:
    new = ("--new-checkpoint-location", place.new_query)
    return place.call("fork", place.state, place.new, *new, *more)


def edit(place: Place) -> int:
    state = {key_of(3): [7], key_of(5): [8, 9]}
    statelog.edit(
        place.state,
        set={"$timers": state},
        delete=[key_of(number) for number in (1, 2)],
        apply=True,
    )
    return 0


def key_texts(number: int) -> list[str]:
    return [str(part) for part in key_of(number)]


def nothing(place: Place) -> None:
    pass


def with_tag(place: Place) -> None:
    assert called("tag STATE before --checkpoint 3")(place) == 0


def with_garbage(place: Place) -> None:
    """Leave what an unfinished checkpoint and a killed write leave behind."""
    store = open_store(place.state, storage_options={"fsync": False})
    store.put(PATHS.changelog("orphan"), b"unfinished")
    store.put(PATHS.task_owned("orphan"), b"unfinished")
    store.put(PATHS.temporary("orphan"), b"unfinished")
    (Path(place.state) / "dstl" / "torn#1").write_bytes(b"unfinished")


def with_export(place: Place) -> None:
    """Write the state of an older checkpoint to files."""
    assert called("read STATE --to OUT --checkpoint earliest")(place) == 0


def edits(place: Place) -> list[str]:
    files = (place.root / "out").glob("*.parquet")
    return [part for file in files for part in ("--set", f"{file.stem}={file}")]


def with_fork(place: Place) -> None:
    assert fork(place) == 0


def with_independent_fork(place: Place) -> None:
    """Make a fork that needs no object of its parent any more, with garbage."""
    assert fork(place, "--copy") == 0
    store = open_existing_store(place.new)
    path = PATHS.parent(statelog.fork(place.state, place.root / "other", state_only=True).fork_id)
    store.put(path, bytes(open_existing_store(place.root / "other").get(path)))
    shutil.rmtree(place.root / "other")
    store.put(PATHS.changelog("orphan"), b"unfinished")


def called(text: str) -> Change:
    """Return a call of the command line; KEY is a key that has state."""

    def call(place: Place) -> int:
        folders = {"STATE": place.state, "QUERY": place.query, "NEW": place.new, "OUT": place.out}
        words: list[str] = []
        for word in text.split():
            words += key_texts(KEY) if word == "KEY" else [folders.get(word, word)]
        return place.call(*words)

    return call


COMMANDS: dict[str, tuple[Callable[[Place], None], Change]] = {
    "fork": (nothing, fork),
    "fork the newest": (nothing, lambda place: fork(place)),
    "fork a tag": (with_tag, lambda place: fork(place, "--checkpoint", "before")),
    "fork --copy": (nothing, lambda place: fork(place, "--copy", "--checkpoint", "3")),
    "fork --state-only": (nothing, called("fork STATE NEW --state-only")),
    "copy": (with_tag, called("copy STATE NEW")),
    "tag": (nothing, called("tag STATE t --comment why")),
    "tag --remove": (with_tag, called("tag STATE before --remove --apply")),
    "rewind": (
        nothing,
        called("rewind QUERY --batch-id 2 --state-location STATE --apply --min-idle 0s"),
    ),
    "verify --repair": (with_garbage, called("verify STATE --repair --apply --min-age 0s")),
    "verify --give-up-after": (nothing, called("verify STATE --give-up-after 3 --apply")),
    "verify --give-up-after 1": (nothing, called("verify STATE --give-up-after 1 --apply")),
    "edit": (nothing, edit),
    "edit from files": (
        with_export,
        lambda place: place.call("edit", place.state, *edits(place), "--delete-others", "--apply"),
    ),
    "forget": (nothing, called("forget STATE KEY --apply")),
    "forget --now": (nothing, called("forget STATE KEY --now --apply")),
    "forget --now in a fork": (with_fork, called("forget NEW KEY --now --apply")),
    "gc": (with_garbage, called("gc STATE --apply --min-age 0s")),
    "gc of a fork": (with_independent_fork, called("gc NEW --apply --min-age 0s")),
    "export": (nothing, called("read STATE --to OUT")),
}


class Trial:
    """A command and its location, which can be put back to the state before the command."""

    def __init__(self, name: str, seed: str, folder: Path) -> None:
        prepare, self.command = COMMANDS[name]
        self.place = Place(folder / "work")
        self.template = folder / "template"
        job = StoredJob(seed, self.place.root, retained=3)
        for _ in range(2 if name.endswith(" 1") else BATCHES):
            job.micro_batch()
        prepare(self.place)
        shutil.copytree(self.place.root, self.template)

    def reset(self) -> None:
        shutil.rmtree(self.place.root)
        shutil.copytree(self.template, self.place.root)

    def call(self) -> int:
        """Run the command and return its status."""
        return self.command(self.place)


def locations(place: Place) -> list[str]:
    folders = (place.state, place.new)
    return [folder for folder in folders if any(Path(folder).glob("chk-*/_metadata"))]


def damage_of(location: str) -> list[str]:
    store = open_existing_store(location)
    return [finding.problem for finding in verify_location(store) if finding.problem]


def states_of(location: str) -> dict[str, Any]:
    """Return the newest state without the time of its micro-batch."""
    with StateReader.open(location) as reader:
        names = [variable.name for variable in reader.variables()]
        return {name: rows_of(reader.table(name)) for name in names}


def tag_text(tag: Tag) -> str:
    """Return a tag as text; the name of a fork differs from run to run."""
    name = tag.name if tag.kind is TagKind.TAG else ""
    return f"{tag.kind.value} {name} {tag.checkpoint_id}"


def result(place: Place) -> dict[str, Any]:
    """Return what a command left: states, tags, references to parents, and files of the queries."""
    after: dict[str, Any] = {}
    assert place.state in locations(place)
    for location in locations(place):
        store = open_existing_store(location)
        assert damage_of(location) == [], location
        after[location] = (
            states_of(location),
            [tag_text(tag) for tag in list_tags(store)],
            len(list(store.list(PATHS.parents))),
        )
    for query in (place.query, place.new_query):
        files = {
            str(path.relative_to(query)): path.read_bytes()
            for path in Path(query).rglob("*")
            if path.is_file() and path.name != "metadata"
        }
        after[query] = files
        if files:
            assert StoredQuery(open_store(query)).query_id()
    out = place.root / "out"
    after["out"] = {path.name: pq.read_table(path).num_rows for path in out.glob("*.parquet")}
    return after
