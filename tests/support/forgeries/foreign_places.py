"""
Locations, forks and recordings as a forger writes them, who wants a command to act on the files of a victim.

Each is a template: a folder that a test copies to `case` for each call, because stored places are absolute.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.forgeries.hostile_location import NAME, hostile_location
from tests.support.forgeries.recordings import forge_recordings
from tests.support.locations.stored_job import StoredJob

import statelog
from statelog.checkpoint.history import read_entry
from statelog.checkpoint.retained import Tag, TagKind
from statelog.checkpoint.tags import put_tag
from statelog.format.checkpoint_metadata import rewrite_metadata
from statelog.format.checkpoint_record import ClaimRecord
from statelog.model import OBJECTS_PROPERTY, CompletedCheckpoint, FileStateHandle, HandleAndOffset
from statelog.store import ObjectStore, open_store
from statelog.store.parents import ParentReference

FORK_ID = "0123456789abcdef"
"""A fork that no parent has."""


@dataclass
class Forgery:
    """
    One forgery, and how commands are called for it.

    Args:
        name: Its template is `templates/<name>`.
        location: The forged location in `case`.
        variable, key: A variable of it, and a key as the command line takes it.
        agreed: Files of the victim that a reader may look at, to see whether both sides agree: the tag of
            the fork in the parent that a fork names, the id of the query in a checkpointLocation.
    """

    name: str
    location: str = "state"
    variable: str = "total"
    key: tuple[str, ...] = ("3", "key 3")
    agreed: list[str] = field(default_factory=list)


class Forger:
    """Makes the templates in a folder with a victim."""

    def __init__(self, folder: Path, port: int, only: Collection[str] | None = None) -> None:
        self.only = only
        self.folder = folder
        self.case = folder / "case"
        self.victim = folder / "victim"
        self.server = f"http://127.0.0.1:{port}/x"
        self.port = port
        self.forgeries: list[Forgery] = []
        for name in ("templates", "tmp", "home"):
            (folder / name).mkdir()
        job = StoredJob("victim", self.victim)
        job.micro_batch()
        job.micro_batch()
        self.victims_fork = statelog.fork(
            self.victim / "state", self.victim / "fork" / "statelog", checkpoint=1
        )
        (self.victim / "secret").write_bytes(b"precious")
        trap = f"open({str(folder / 'ran')!r}, 'w').close()\n"
        (self.victim / "secret.py").write_text(
            trap + "from tests.support.forgeries.hostile_location import Trap\n"
        )

    def make(self) -> list[Forgery]:
        self._recordings()
        self._names()
        self._parents()
        self._links()
        self._positions()
        self._tags()
        return self.forgeries

    def _save(self, name: str, write: Callable[[], object], **how: Any) -> None:
        """Write a template at the place where it is used, and put it away."""
        if self.only is not None and name not in self.only:
            return
        shutil.rmtree(self.case, ignore_errors=True)
        self.case.mkdir()
        write()
        self.case.rename(self.folder / "templates" / name)
        self.forgeries.append(Forgery(name, **how))

    def _stored(self) -> StoredJob:
        """Write a sound location with its checkpointLocation, a tag and files beside the metadata."""
        job = StoredJob(2, self.case)
        for _ in range(3):
            job.micro_batch()
        (self.case / "query" / "statelog").symlink_to(self.case / "state")
        tag = Tag(kind=TagKind.TAG, name="kept", checkpoint_id=2)
        put_tag(job.store, tag, clock_ms=lambda: 0)
        return job

    def _recordings(self) -> None:
        how = {"variable": NAME, "key": ("k1",)}
        place = str(self.case / "state")
        secret = str(self.victim / "secret.py")

        def hostile(**changes: Any) -> None:
            hostile_location(self.case / "state")
            if changes:
                forge_recordings(open_store(place), **changes)

        self._save("hostile-names", hostile, **how)
        for number, changes in enumerate((
            {"processor": "secret:Trap", "source": secret},
            {"processor": "os:abort", "source": ""},
            {"processor": f"{secret}:Trap", "source": self.server},
        )):  # fmt: skip
            self._save(f"recording-{number}", partial(hostile, **changes), **how)

    def _hostile_paths(self) -> Mapping[str, str]:
        secret = self.victim / "secret"
        return {
            "up": "../../victim/secret",
            "absolute": str(secret),
            "url": secret.as_uri(),
            "encoded": "%2e%2e/%2e%2e/victim/secret",
            "server": self.server,
            "parent": f"parent/{FORK_ID}/../../../victim/secret",
        }

    def _names(self) -> None:
        """Forge the names of objects in checkpoints and in recordings."""
        for name, path in self._hostile_paths().items():
            wheres = ("log", "snapshot", "listed", "recording", "output", "folder", "logs")
            for where in wheres if name in ("up", "server") else wheres[:1]:
                self._save(
                    f"name-{name}-in-{where}",
                    lambda path=path, where=where: (
                        self._stored(),
                        forge_checkpoints(self.case / "state", partial(with_path, path, where)),
                    ),
                )

    def _parents(self) -> None:
        """Forge the place of a fork's parent."""
        victims = self.victims_fork.fork_id
        # Places on the disk of the fork.  Nothing but the tag of the fork is looked for there.
        state = self.victim / "state"
        same_disk = {
            "victim": state,
            "victim-local": state,
            "victim-up": state,
            "victim-folder": self.victim,
        }
        places = {
            "server": self.server,
            "ftp": f"ftp://127.0.0.1:{self.port}/x",
            "webhdfs": f"webhdfs://127.0.0.1:{self.port}/x",
            "chained": f"simplecache::http://127.0.0.1:{self.port}/x",
            "local-chained": f"local::{self.victim / 'state'}",
            "s3": "s3://bucket/x",
            "s3-options": f"s3://bucket/x?endpoint={self.server}",
            "memory": "memory://x",
            "victim": str(self.victim / "state"),
            "victim-local": f"local://{self.victim / 'state'}",
            "victim-up": "../../victim/state",
            "victim-folder": str(self.victim),
            "circle": str(self.case / "new"),
        }
        for name, place in places.items():
            for fork_id in (FORK_ID, victims):
                self._save(
                    f"parent-{name}-{'victims' if fork_id == victims else 'no'}-fork",
                    partial(self._forged_fork, fork_id, place),
                    location="new",
                    agreed=[str(same_disk[name] / "tags" / "fork" / fork_id)]
                    if name in same_disk
                    else [],
                )

    def _forged_fork(self, fork_id: str, place: str) -> None:
        self._stored()
        forked = statelog.fork(
            self.case / "state", self.case / "new", new_checkpoint_location=self.case / "new-query"
        )
        new = self.case / "new"
        reference = ParentReference(location=place, checkpoint_id=1).encoded()
        (new / "parents" / forked.fork_id).unlink()
        (new / "parents" / fork_id).write_bytes(reference)
        forge_checkpoints(new, partial(with_fork_id, forked.fork_id, fork_id))
        shutil.rmtree(self.case / "state")
        shutil.rmtree(self.case / "query")

    def _links(self) -> None:
        """Replace folders and objects by links to the victim's."""
        state = self.victim / "state"
        for name, target in {
            **{
                name: state / name
                for name in ("dstl", "taskowned", "tags", "chk-0", "chk-1", "chk-2")
            },
            **dict.fromkeys(
                ("tmp", "recordings", "parents", "output", "shared", "audit"), self.victim
            ),
            f"copied-{FORK_ID}/from": self.victim / "secret",
            "chk-0/_metadata": self.victim / "secret",
            "chk-3/_metadata": state / "chk-1" / "_metadata",
            "chk-4": state / "chk-1",
            "chk-5": state / "chk-0",
            "audit/20260101T000000000Z-0123456789abcdef.begin": self.victim / "secret",
            "trap.py": self.victim / "secret.py",
        }.items():
            self._save(f"link-{name.replace('/', '-')}", partial(self._link, name, target))

    def _link(self, name: str, target: Path) -> None:
        self._stored()
        link = self.case / "state" / name
        if link.is_dir():
            shutil.rmtree(link)
        link.unlink(missing_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def _positions(self) -> None:
        """Forge where the query's checkpointLocation is."""
        query = self.victim / "query"
        for name, place, agreed in (
            ("server", self.server, []),
            ("s3", "s3://bucket/x", []),
            ("victim", str(query), [str(query / "metadata")]),
            ("victim-local", f"local://{query}", [str(query / "metadata")]),
            ("victim-folder", str(self.victim), []),
        ):
            forged = partial(with_properties, {"checkpoint_location": place, "query_id": "another"})
            self._save(
                f"position-{name}",
                lambda forged=forged: (
                    self._stored(), forge_checkpoints(self.case / "state", forged)
                ),
                agreed=agreed,
            )  # fmt: skip

    def _tags(self) -> None:
        """Forge the files of a tag, and its name."""
        for number, path in enumerate(
            ("../../victim/secret", str(self.victim / "secret"), "metadata")
        ):
            self._save(f"tag-{number}", partial(self._tag, path))

    def _tag(self, path: str) -> None:
        job = self._stored()
        shutil.rmtree(self.case / "state" / "tags")
        tag = Tag(kind=TagKind.TAG, name="kept", checkpoint_id=2)
        facts = {"comment": path, "location": self.server}
        files = {"offsets/1": b"v1", path: b"evil"}
        put_tag(job.store, tag, clock_ms=lambda: 0, facts=facts, files=files)


def forge_checkpoints(
    folder: Path, change: Callable[[CompletedCheckpoint], CompletedCheckpoint]
) -> None:
    """Write all checkpoints of a location again, changed, with the right checksums."""
    store: ObjectStore = open_store(str(folder), storage_options={"fsync": False})
    for metadata in folder.glob("chk-*/_metadata"):
        name = f"{metadata.parent.name}/_metadata"
        entry = read_entry(store, int(metadata.parent.name[4:]))
        if isinstance(entry, ClaimRecord):
            continue
        changed = change(entry.checkpoint)
        metadata.write_bytes(
            b"".join(map(bytes, rewrite_metadata(store.get(name), changed).buffers))
        )


def with_properties(
    changes: Mapping[str, Any], checkpoint: CompletedCheckpoint
) -> CompletedCheckpoint:
    """Return a checkpoint with other properties."""
    return replace(checkpoint, properties={**checkpoint.properties, **changes})


def with_path(path: str, where: str, checkpoint: CompletedCheckpoint) -> CompletedCheckpoint:
    """Return a checkpoint with *path* as the name of objects."""
    file = FileStateHandle(path, 8, 0)
    stored = {"file": path, "size": 8}
    number = checkpoint.checkpoint_id
    entry = {
        "kind": "recording", "oldest": number, "newest": number, "path": path, "size": 8,
        "count": 1, "at_ms": 0,
    }  # fmt: skip
    match where:
        case "log":
            log = tuple(
                replace(
                    handle, handles_and_offsets=(HandleAndOffset(file, 0, 8, 0),)
                )
                for handle in checkpoint.log
            )  # fmt: skip
            return replace(checkpoint, log=log)
        case "snapshot":
            return replace(
                checkpoint,
                materialized=tuple(
                    replace(snapshot, handle=file) for snapshot in checkpoint.materialized
                ),
            )
        case "listed":
            return with_properties({OBJECTS_PROPERTY: [path]}, checkpoint)
        case "recording":
            return with_properties({"attachments": [entry]}, checkpoint)
        case "output":
            return with_properties({"output_files": [stored]}, checkpoint)
        case "logs":
            logs = [{**log, "folder": path} for log in checkpoint.properties["source_logs"]]  # type: ignore[union-attr]
            return with_properties({"source_logs": logs}, checkpoint)
    return with_properties({"source_folders": [path]}, checkpoint)


def with_fork_id(old: str, new: str, checkpoint: CompletedCheckpoint) -> CompletedCheckpoint:
    """Return a checkpoint whose objects are in another parent."""
    log = tuple(
        replace(
            handle,
            handles_and_offsets=tuple(
                replace(entry, handle=replace(entry.handle, path=entry.handle.path.replace(old, new)))
                if isinstance(entry.handle, FileStateHandle) else entry
                for entry in handle.handles_and_offsets
            ),
        )
        for handle in checkpoint.log
    )  # fmt: skip
    return replace(checkpoint, log=log)
