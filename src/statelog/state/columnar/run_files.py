"""
Runs of state in local memory-mapped files, which all workers on a host share.

A worker keeps its state in memory, or in such files too: `heap.StateBackendConfig` says which.

They are a cache: all state in them was read from the store or folded from committed changes, so a
lost file loses no state.  A process verifies a file of another process before it uses it.  A file
records for each of its key groups what was applied to the state last: the id of a log handle, or
the path of a snapshot.  Both are globally unique.  A file is used for a key group if the checkpoint
to restore still refers to that id.  So a file of a run that was rolled back, or of an earlier state
location under the same name, is never used.

File: record batch message of Arrow IPC, JSON header, tail (checksum of all before, lengths, magic).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from statelog.errors import CorruptionError
from statelog.format.arrow_data import read_batch
from statelog.format.buffers import checksum, decode_json
from statelog.model import KeyGroupRange
from statelog.runtime.clock import IdSource, wall_clock_seconds
from statelog.state.columnar.sorted_run import RowLayout, SortedRun
from statelog.state.heap import StateBackendConfig

_log = logging.getLogger("statelog")

_MAGIC: Final = b"SLRUN\x00\x00\x01"
_TAIL: Final = struct.Struct("<IIQ8s")
_HASHES: Final = b"2"
"""
Version of the hashes of keys: rows are found by them.

In version 1 structs were hashed otherwise.
"""
_SUFFIX: Final = ".run"
_HALF_WRITTEN_SECONDS: Final = 3600
_FORGOTTEN_SECONDS: Final = 7 * 24 * 3600


class _Header(msgspec.Struct, frozen=True):
    layout: str
    start: int
    last_applied: list[str] = msgspec.field(name="tips")


_header_decoder: Final = msgspec.json.Decoder(_Header)


@dataclass(frozen=True, slots=True)
class RunFile:
    """A file as described by its name and header, which have not been verified."""

    path: Path
    key_group_range: KeyGroupRange
    version: int
    last_applied: Mapping[int, str]


def default_folder() -> Path:
    """Return the default folder for local state, one per user."""
    return Path(tempfile.gettempdir()) / f"statelog-{os.getuid()}"


class RunFiles:
    """
    The runs of one state location on this host.

    Thread: one at a time in a process; any number of processes.
    """

    def __init__(self, folder: Path, location: str, layout: RowLayout, ids: IdSource) -> None:
        self._layout = layout
        self._ids = ids
        # A file of another schema, or with other hashes, has a different fingerprint and is not
        # used.
        form = bytes(layout.schema.serialize()) + _HASHES
        self._fingerprint = hashlib.sha256(form).hexdigest()[:16]
        self.folder = folder / hashlib.sha256(location.encode()).hexdigest()[:24]
        # Created with the first file: most state never needs one.
        if folder.exists():
            _make_private(folder)
        if self.folder.exists():
            self._open_folder()

    def _open_folder(self) -> None:
        _make_private(self.folder.parent)
        _make_private(self.folder)
        os.utime(self.folder)
        self._tidy(self.folder.parent)

    def _tidy(self, folder: Path) -> None:
        """Remove files that dead writers left, and locations unused for a week."""
        now = wall_clock_seconds()
        with contextlib.suppress(OSError):
            for path in self.folder.glob("*.tmp"):
                if now - path.stat().st_mtime > _HALF_WRITTEN_SECONDS:
                    path.unlink(missing_ok=True)
            for other in folder.iterdir():
                if now - other.stat().st_mtime > _FORGOTTEN_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)

    def find(self, key_group_range: KeyGroupRange) -> list[RunFile]:
        """Return the files that contain key groups in the range, newest version first."""
        run_files = []
        with contextlib.suppress(OSError):
            # The name has key groups and version, so most files are not opened.
            for name in os.listdir(self.folder):
                parsed = _parsed(name)
                if parsed is not None and len(parsed[0].intersection(key_group_range)):
                    run_files.append((parsed[1], name, parsed[0]))
        files = (
            self._describe(name, key_groups, version)
            for version, name, key_groups in sorted(run_files)[::-1]
        )
        return [file for file in files if file is not None]

    def _describe(self, name: str, key_groups: KeyGroupRange, version: int) -> RunFile | None:
        path = self.folder / name
        try:
            with open(path, "rb") as file:
                file.seek(-_TAIL.size, os.SEEK_END)
                _, header_size, _, magic = _TAIL.unpack(file.read(_TAIL.size))
                file.seek(-_TAIL.size - header_size, os.SEEK_END)
                header = decode_json(file.read(header_size), _header_decoder)
        except (OSError, struct.error, msgspec.MsgspecError):
            return None  # removed meanwhile, or damaged
        if (
            magic != _MAGIC
            or header.layout != self._fingerprint
            or header.start != key_groups.start
        ):
            return None
        return RunFile(
            path, key_groups, version, dict(zip(key_groups, header.last_applied, strict=False))
        )

    def open(self, file: RunFile) -> SortedRun:
        """Map a file into memory, and verify it."""
        with pa.memory_map(str(file.path)) as source:
            data = source.read_buffer()
        view = memoryview(data)
        try:
            crc, _, size, magic = _TAIL.unpack(view[-_TAIL.size :])
            if magic != _MAGIC or crc != checksum([view[: -_TAIL.size]]):
                raise CorruptionError("its checksum does not match")
            rows = read_batch(data[: min(size, len(view))], self._layout.schema)
            return SortedRun(file.key_group_range, rows)
        except (pa.ArrowException, OSError, struct.error, CorruptionError) as error:
            file.path.unlink(missing_ok=True)
            raise CorruptionError(f"damaged local state {file.path}: {error}") from error

    def write(self, run: SortedRun, last_applied: Sequence[str], version: int) -> SortedRun:
        """Write a run to a file, map the file, and remove superseded files."""
        pending = self.begin(run)
        mapped = self.mapped(pending)
        self.publish(pending, last_applied, version, committed=True)
        return mapped

    def mapped(self, pending: PendingRun) -> SortedRun:
        """Map the rows that `begin` wrote; raise `OSError` if that fails."""
        with pa.memory_map(str(pending.path)) as source:
            data = source.read_buffer()
        rows = pa.ipc.read_record_batch(data.slice(0, pending.size), self._layout.schema)
        return SortedRun(pending.key_group_range, rows)

    def begin(self, run: SortedRun) -> PendingRun:
        """Write the rows of a run to an unnamed file; `publish` gives it a name."""
        if not self.folder.exists():
            self._open_folder()
        # The rows first: what was applied last is known only at the end of a replay.
        message = run.rows.serialize()
        path = self.folder / f"{self._ids.new_id()}.tmp"
        try:
            path.write_bytes(message)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return PendingRun(path, run.key_group_range, message.size, checksum([memoryview(message)]))

    def publish(
        self,
        pending: PendingRun,
        last_applied: Sequence[str],
        version: int,
        *,
        committed: bool = False,
    ) -> RunFile:
        """Finish a file started by `begin`, give it a name, and remove superseded files."""
        key_groups = pending.key_group_range
        header = msgspec.json.encode(
            _Header(self._fingerprint, key_groups.start, list(last_applied))
        )
        # The digest tells files of one version apart that were made from different logs.
        digest = hashlib.sha256(header).hexdigest()[:16]
        path = self.folder / f"{key_groups.start}-{key_groups.end}-{version}-{digest}{_SUFFIX}"
        crc = checksum([header], pending.crc)
        try:
            with open(pending.path, "ab") as file:
                file.write(header)
                file.write(_TAIL.pack(crc, len(header), pending.size, _MAGIC))
            # Renamed when it is whole: another process sees all of it or nothing.
            os.replace(pending.path, path)
        except OSError:
            pending.path.unlink(missing_ok=True)
            raise
        new = RunFile(path, key_groups, version, dict(zip(key_groups, last_applied, strict=True)))
        # The snapshot may still fail to be committed, so the version before stays usable.
        self._remove_older(new, spare=0 if committed else 1)
        return new

    def _remove_older(self, new: RunFile, spare: int) -> None:
        """Remove files that are older than *new* and contain only its key groups."""
        older: list[tuple[int, str]] = []
        key_groups = new.key_group_range
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder):
                parsed = _parsed(name)
                if parsed is None or parsed[1] >= new.version:
                    continue
                if key_groups.start <= parsed[0].start and parsed[0].end <= key_groups.end:
                    older.append((parsed[1], name))
            versions = sorted({version for version, _ in older}, reverse=True)
            for version, name in older:
                if version not in versions[:spare]:
                    (self.folder / name).unlink(
                        missing_ok=True
                    )  # a process that mapped it keeps its pages


@dataclass(frozen=True, slots=True)
class PendingRun:
    """A file that does not have a name yet, with the size and checksum of its rows."""

    path: Path
    key_group_range: KeyGroupRange
    size: int
    crc: int


def _parsed(name: str) -> tuple[KeyGroupRange, int] | None:
    if not name.endswith(_SUFFIX):
        return None
    try:
        start, end, version, _ = name.removesuffix(_SUFFIX).split("-")
        return KeyGroupRange(int(start), int(end)), int(version)
    except ValueError:
        return None


def _make_private(folder: Path) -> None:
    """Create a private folder; reject an existing folder that other users can write to."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # State is read back from here, so no other user may put files into it.
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not owned by user {os.getuid()}")
    if status.st_mode & 0o022:
        raise PermissionError(f"other users can write to {folder}; make it private (chmod 700)")


def opener(
    config: StateBackendConfig, location: str, ids: IdSource
) -> Callable[[RowLayout], RunFiles | None]:
    """Return a function that opens the host's files, or returns None if it cannot."""

    def open_runs(layout: RowLayout) -> RunFiles | None:
        if config.kind == "memory":
            return None
        folder = default_folder() if config.folder is None else Path(config.folder)
        try:
            return RunFiles(folder, location, layout, ids)
        except OSError as error:
            _log.warning(
                "no local files for state (%s); large state stays in memory. Set the "
                "option state.local-directory to a folder on the host's disk",
                error,
            )
            return None

    return open_runs
