"""
Create and parse the names of all of statelog's objects.

Source: Flink's checkpoint layout (FsCheckpointStorageAccess): `shared/`, `taskowned/`,
`chk-<n>/_metadata`, and `dstl/` for changelog files.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from statelog.arguments import folder, text, whole_number
from statelog.errors import UsageError

METADATA_FILE_NAME = "_metadata"
STATE_FOLDER = "statelog"
"""The folder in a checkpointLocation that contains the state if stateLocation is not set."""
TEMPORARY_FOLDER = "tmp"
RECORDINGS_FOLDER = "recordings"
FAILED_FOLDER = "failed"
BROADCASTS_FOLDER = "broadcasts"
_COPIED_FOLDER = "copied-"
_COPIED = re.compile(r"copied-([0-9a-f]{16})(?:/from)?$")
_CHECKPOINT_FOLDER = re.compile(r"(?:^|/)chk-(0|[1-9][0-9]*)$")
_CHECKPOINT_METADATA = re.compile(r"(?:^|/)chk-(0|[1-9][0-9]*)/_metadata$")
_OBJECT = re.compile(
    r"(?:chk-\d+/_metadata|(?:dstl|shared|taskowned|output|parents|probed|tmp|broadcasts|copied-[0-9a-f]+)/[^/]+"
    r"|recordings/(?:failed/)?[^/]+|audit/[^/]+|tags/[^/]+/[^/]+/[^/]+)$"
)
_TAGS_FOLDER = "tags"
_PROBES_FOLDER = "probed"
_TAG = re.compile(
    r"(?:^|/)tags/([a-z]+)/([A-Za-z0-9][A-Za-z0-9._-]*)/(0|[1-9][0-9]*)(?:\+([1-9][0-9]*))?-[0-9a-f]{16}$"
)
_AUDIT = re.compile(r"(?:^|/)audit/(\d{8}T\d{9}Z-[0-9a-f]{16})\.(begin|end)$")


@dataclass(frozen=True, slots=True)
class LocationPaths:
    """
    The names of objects below one folder of a store.

    Args:
        root: Folder, "" for the root of the store; one name or several with a slash between them.

    Raises:
        UsageError: *root* begins or ends with a slash, or leads out of the store (`..`).
    """

    root: str = ""

    def __post_init__(self) -> None:
        for part in text(self.root, "root").split("/") if self.root != "" else ():
            if not part:
                raise UsageError(f"root must not start or end with a slash; it is {self.root!r}")
            folder(part, "each folder of root")

    def _join(self, *parts: str) -> str:
        return "/".join(part for part in (self.root, *parts) if part)

    def changelog(self, name: str) -> str:
        """Return the name of a changelog file."""
        return self._join("dstl", name)

    def shared(self, name: str = "") -> str:
        """Return the folder for shared state, or a name in it."""
        return self._join("shared", name)

    def task_owned(self, name: str = "") -> str:
        """Return the folder for state owned by tasks (snapshots), or a name in it."""
        return self._join("taskowned", name)

    def output(self, name: str) -> str:
        """Return the name of a file of staged output rows."""
        return self._join("output", name)

    def recording(self, name: str) -> str:
        """Return the name of a file of recordings from one micro-batch."""
        return self._join(RECORDINGS_FOLDER, name)

    def broadcast(self, name: str) -> str:
        """Return the name of the object that contains one version of a broadcast table."""
        return self._join(BROADCASTS_FOLDER, name)

    @property
    def failed_recordings(self) -> str:
        """The folder for recordings of keys whose processing failed."""
        return self._join(RECORDINGS_FOLDER, FAILED_FOLDER)

    def failed_recording(self, name: str) -> str:
        """Return the name of the recording of a key whose processing failed."""
        return f"{self.failed_recordings}/{name}"

    def temporary(self, name: str) -> str:
        """Return the name of an object that is needed only during a single call."""
        return self._join(TEMPORARY_FOLDER, name)

    @property
    def tags(self) -> str:
        """The folder of all tags."""
        return self._join(_TAGS_FOLDER)

    def tags_of(self, kind: str, name: str) -> str:
        """Return the folder of the tags with a kind and a name."""
        return self._join(_TAGS_FOLDER, kind, name)

    def tag(self, kind: str, name: str, checkpoint_id: int, newest: int, attempt: str) -> str:
        """
        Return the name of the object that pins a checkpoint.

        Args:
            kind: What pins it, in lower-case letters.
            name: Name of the tag.
            checkpoint_id: The pinned checkpoint.
            newest: See `statelog.model.checkpoint.Pin`.
            attempt: 16 hexadecimal digits, so that the name is never used again.
        """
        pin = f"{checkpoint_id}+{newest}" if newest else str(checkpoint_id)
        return self._join(_TAGS_FOLDER, kind, name, f"{pin}-{attempt}")

    @property
    def parents(self) -> str:
        """The folder of the references to the parents of a fork."""
        return self._join("parents")

    def parent(self, fork_id: str) -> str:
        """Return the name of the object that records the location of a fork's parent."""
        return self._join("parents", fork_id)

    @property
    def audit(self) -> str:
        """The folder of the audit lines."""
        return self._join("audit")

    def audit_part(self, line: str, part: str) -> str:
        """
        Return the name of one of the two objects of an audit line.

        Args:
            line: Time and attempt, such as `20261124T220501123Z-0123456789abcdef`.
            part: "begin" or "end".
        """
        return self._join("audit", f"{line}.{part}")

    @property
    def probes(self) -> str:
        """The folder of the results of probes."""
        return self._join(_PROBES_FOLDER)

    def probed(self, name: str) -> str:
        """Return the name of the object that records that a server has passed the probe."""
        return self._join(_PROBES_FOLDER, name)

    def copied_from(self, location_id: str) -> str:
        """
        Return the name of the object that records from which location this one was copied.

        Args:
            location_id: The identity of the copy, 16 hexadecimal digits.
        """
        return self._join(f"{_COPIED_FOLDER}{location_id}", "from")

    def checkpoint(self, checkpoint_id: int) -> str:
        """Return a checkpoint's own folder; raises `UsageError` for a negative id."""
        whole_number(checkpoint_id, "a checkpoint id", low=0)
        return self._join(f"chk-{checkpoint_id}")

    def metadata(self, checkpoint_id: int) -> str:
        """Return the name of a checkpoint's metadata object, which is the commit point."""
        return f"{self.checkpoint(checkpoint_id)}/{METADATA_FILE_NAME}"


PATHS: Final = LocationPaths()
"""The names in a location: a store whose root is the root of the location."""

DATA_FOLDERS: Final = frozenset(
    path.partition("/")[0]
    for path in (
        PATHS.changelog(""),
        PATHS.shared(),
        PATHS.task_owned(),
        PATHS.output(""),
        PATHS.recording(""),
        PATHS.broadcast(""),
        PATHS.temporary(""),
    )
)
"""The folders whose objects are garbage once no retained checkpoint references them."""


class LooseObjects(NamedTuple):
    """
    Objects that are retained for some time without being referenced by a checkpoint.

    Args:
        folder: The beginning of their names.
        age: How long they are kept; None for as long as what a query attaches to its checkpoints.
        is_verified: Whether each has a checksum of its own, which verify checks.
    """

    folder: str
    age: dt.timedelta | None
    is_verified: bool


LOOSE_OBJECTS: Final = (
    LooseObjects(PATHS.failed_recording(""), None, is_verified=True),
    # A restart that repeats a micro-batch reads the versions that its first run stored.
    LooseObjects(PATHS.broadcast(""), dt.timedelta(days=7), is_verified=False),
)


def split_object(url: str) -> tuple[str, str]:
    """Split the URL of an object into location and name, or into folder and last part."""
    match = _OBJECT.search(url)
    name = match[0] if match else url.rpartition("/")[2]
    return url.removesuffix(name).removesuffix("/"), name


def parse_checkpoint_folder(path: str) -> int | None:
    """Return N if *path* is the folder `chk-N`, otherwise None."""
    match = _CHECKPOINT_FOLDER.search(path)
    return int(match[1]) if match else None


def parse_copy_folder(path: str) -> str | None:
    """Return the identity of the copy that the folder or object *path* marks, otherwise None."""
    match = _COPIED.match(path)
    return match[1] if match else None


def parse_checkpoint_metadata(path: str) -> int | None:
    """Return N if *path* is `chk-N/_metadata`, otherwise None."""
    match = _CHECKPOINT_METADATA.search(path)
    return int(match[1]) if match else None


def parse_tag(path: str) -> tuple[str, str, int, int] | None:
    """Parse the path of a tag: kind, name, checkpoint, and number of newest checkpoints."""
    match = _TAG.search(path)
    return (match[1], match[2], int(match[3]), int(match[4] or 0)) if match else None


def parse_audit_part(path: str) -> tuple[str, str] | None:
    """Return the line and the part if *path* is an object of an audit line, otherwise None."""
    match = _AUDIT.search(path)
    return (match[1], match[2]) if match else None


def is_audit_end(path: str) -> bool:
    """Return whether *path* is the second object of an audit line."""
    return (parse_audit_part(path) or ("", ""))[1] == "end"
