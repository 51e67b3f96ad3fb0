"""
The table of all options: their keys in every spelling, their units and their meaning.

A key of ours is `<section>.<name>`.  Flink's keys follow it, the present one first, then the
deprecated ones.  Keys of Flink's without an option here are listed too: an unsupported setting is
refused, and one without effect is not reported as a misspelling.
Source: Flink 2.3.0, FsStateChangelogOptions, StateChangelogOptions, CheckpointingOptions.
"""

from __future__ import annotations

import datetime as dt
import difflib
import enum
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from statelog.errors import InvalidOptionsError
from statelog.options import units

_DFS: Final = ("state.changelog.dstl.dfs.", "state.backend.changelog.dstl.dfs.", "dstl.dfs.")
_CHANGELOG: Final = ("state.changelog.", "state.backend.changelog.")
_EXECUTION: Final = "execution.checkpointing."


OptionValue: TypeAlias = bool | int | float | str | dt.timedelta | tuple[str, ...]
"""What an option can be set to."""


class OptionKind(enum.Enum):
    """The kind of a value, and how it is written."""

    SIZE = "size"
    COUNT = "count"
    RATIO = "number"
    DURATION = "duration"
    SWITCH = "true or false"
    TEXT = "text"
    PATHS = "paths"

    def parse(self, value: object, key: str) -> OptionValue:
        """
        Return *value* in the type of this kind.

        Raises:
            InvalidOptionsError: It is not of this kind.
        """
        return _PARSERS[self](value, key=key)


_PARSERS: Final[Mapping[OptionKind, Callable[..., OptionValue]]] = {
    OptionKind.SIZE: units.parse_size,
    OptionKind.COUNT: units.parse_count,
    OptionKind.RATIO: units.parse_ratio,
    OptionKind.DURATION: units.parse_duration,
    OptionKind.SWITCH: units.parse_bool,
    OptionKind.TEXT: units.parse_text,
    OptionKind.PATHS: units.parse_paths,
}


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """
    One row of the table.

    Args:
        section: The section it belongs to.
        field: Its name in the option class of the section.
        name: Its name in a key, after the section.
        kind: The kind of its value.
        flink_keys: Flink's keys, the present one first.
        description: What it does, in a sentence.
        not_in_query: Why a query on Spark rejects it; "" where it takes effect there.
    """

    section: str
    field: str
    name: str
    kind: OptionKind
    flink_keys: tuple[str, ...]
    description: str
    not_in_query: str = ""

    @property
    def key(self) -> str:
        """Our key."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return variable_of(self.key)

    @property
    def spark_key(self) -> str:
        """The key in Spark's configuration."""
        return f"spark.statelog.{self.key}"


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """
    A key of Flink's without an option here.

    Args:
        keys: Its spellings.
        kind: The kind of its value.
        allowed: The one value that statelog supports; None to accept any, without effect.
        reason: Why the key has no option.
    """

    keys: tuple[str, ...]
    kind: OptionKind
    allowed: OptionValue | None
    reason: str


def _dfs(
    field: str,
    name: str,
    kind: OptionKind,
    description: str,
    *,
    not_in_query: str = "",
) -> OptionSpec:
    keys = tuple(prefix + name for prefix in _DFS)
    return OptionSpec("changelog", field, name, kind, keys, description, not_in_query)


_NO_STREAM: Final = "a task writes each snapshot in one piece"
_NO_DOWNLOADS: Final = "a task reads the log through a cache in memory, and keeps its state on the host (stateBackend, localDirectory)"
_NO_COPIES: Final = "a worker keeps its state in memory and on the host's disk (stateBackend, localDirectory), and a restart begins from there"


OPTIONS: Final = (
    _dfs("base_path", "base-path", OptionKind.TEXT, "Root of the changelog files, where it is not given in code.", not_in_query="the changelog is stored in the state location; set stateLocation"),
    _dfs("compression_enabled", "compression.enabled", OptionKind.SWITCH, "Snappy-frame the files."),
    _dfs(
        "preemptive_persist_threshold_bytes",
        "preemptive-persist-threshold",
        OptionKind.SIZE,
        "Bytes that a writer holds before it uploads them ahead of a checkpoint; 0 uploads every append.",
    ),
    _dfs("batch_persist_delay", "batch.persist-delay", OptionKind.DURATION, "Longest time an upload waits for others to share its file."),
    _dfs("batch_persist_size_threshold_bytes", "batch.persist-size-threshold", OptionKind.SIZE, "Waiting bytes, of all writers, that are uploaded at once; at most `changelog.upload.max-in-flight`."),
    _dfs("upload_num_threads", "upload.num-threads", OptionKind.COUNT, "Concurrent uploads."),
    _dfs("discard_num_threads", "discard.num-threads", OptionKind.COUNT, "Concurrent deletions."),
    _dfs("upload_max_in_flight_bytes", "upload.max-in-flight", OptionKind.SIZE, "Bytes queued or uploading, of all writers; above it callers wait."),
    _dfs("upload_retry_policy", "upload.retry-policy", OptionKind.TEXT, "`fixed`, `none`, or (not in Flink) `exponential`."),
    _dfs("upload_timeout", "upload.timeout", OptionKind.DURATION, "Age of an attempt at which a hedged attempt starts; 0 for never."),
    _dfs("upload_max_attempts", "upload.max-attempts", OptionKind.COUNT, "Attempts of one upload, the first included."),
    _dfs("upload_next_attempt_delay", "upload.next-attempt-delay", OptionKind.DURATION, "Delay after an error; for `exponential` the first one."),
    OptionSpec(
        "changelog",
        "download_local_cache_idle_timeout",
        "download.local-cache.idle-timeout",
        OptionKind.DURATION,
        tuple(f"{prefix}download.local-cache.idle-timeout-ms" for prefix in _DFS),
        "Time after its last use at which a downloaded file is deleted from local disk.",
        not_in_query=_NO_DOWNLOADS,
    ),
    OptionSpec("changelog", "download_local_cache_max_bytes", "download.local-cache.max-size", OptionKind.SIZE, (), "Bound of the downloaded files on local disk; larger files are not kept.", not_in_query=_NO_DOWNLOADS),
    OptionSpec("changelog", "batch_fixed_delay", "batch.fixed-delay", OptionKind.SWITCH, (), "Wait for the delay even if no upload is running, as Flink does."),
    OptionSpec("changelog", "backpressure_timeout", "backpressure-timeout", OptionKind.DURATION, (), "Longest wait of a caller for upload capacity."),
    OptionSpec("checkpoint", "retained", "retained", OptionKind.COUNT, (f"{_EXECUTION}num-retained", "state.checkpoints.num-retained"), "Completed checkpoints that can be restored."),
    OptionSpec("checkpoint", "compress_metadata", "compress-metadata", OptionKind.SWITCH, (), "Snappy-frame the change sets inside `_metadata`."),
    OptionSpec("checkpoint", "min_age_of_orphans", "min-age-of-orphans", OptionKind.DURATION, (), "Garbage collection keeps younger objects; must exceed the time from an upload to the commit of its checkpoint."),
    OptionSpec(
        "stream",
        "data_inline_threshold_bytes",
        "data-inline-threshold",
        OptionKind.SIZE,
        (f"{_EXECUTION}data-inline-threshold", "state.storage.fs.memory-threshold", "state.backend.fs.memory-threshold"),
        "State up to this size stays in its handle; at most 1 mb.",
        not_in_query="changes and rows of a task up to inlineBytes are stored in the object of the micro-batch, and a snapshot is always a file; set inlineBytes",
    ),
    OptionSpec(
        "stream",
        "write_buffer_size_bytes",
        "write-buffer-size",
        OptionKind.SIZE,
        (f"{_EXECUTION}write-buffer-size", "state.storage.fs.write-buffer-size", "state.backend.fs.write-buffer-size"),
        "Small writes to a checkpoint stream are collected in pieces of this size; raised to the threshold.",
        _NO_STREAM,
    ),
    OptionSpec("snapshot", "log_to_snapshot_ratio", "log-to-snapshot-ratio", OptionKind.RATIO, (), "The log may grow to this many times the size of the state before snapshots have covered it."),
    OptionSpec("snapshot", "min_log_bytes", "min-log-size", OptionKind.SIZE, (), "A smaller log never makes a snapshot due by its size."),
    OptionSpec("snapshot", "max_log_handles", "max-log-handles", OptionKind.COUNT, (), "Checkpoints whose log one key group may have to replay, whatever its size."),
    OptionSpec("snapshot", "slice_bytes", "slice-size", OptionKind.SIZE, (), "Size of the snapshot that one micro-batch writes; see `snapshot.max-slices`."),
    OptionSpec("snapshot", "max_slices", "max-slices", OptionKind.COUNT, (), "Slices of a state at most; a state too large for so many is cut into larger slices."),
    OptionSpec("local-recovery", "backup", "backup", OptionKind.SWITCH, (f"{_EXECUTION}local-backup.enabled",), "Write local copies of uploaded files; by default the value of `local-recovery.recovery`.", not_in_query=_NO_COPIES),
    OptionSpec("local-recovery", "recovery", "recovery", OptionKind.SWITCH, ("execution.state-recovery.from-local", "state.backend.local-recovery"), "Read local copies where they exist.", not_in_query=_NO_COPIES),
    OptionSpec("local-recovery", "directories", "directories", OptionKind.PATHS, (f"{_EXECUTION}local-backup.dirs", "taskmanager.state.local.root-dirs"), "Directories of this host for local copies.", not_in_query=_NO_COPIES),
)  # fmt: skip
"""Every option."""

RENAMED_SECTIONS: Final = {"materialization": "snapshot"}
"""Old names of sections, accepted for one version, and the present ones."""

SECTIONS: Final = tuple(dict.fromkeys(spec.section for spec in OPTIONS))

FOREIGN: Final = (
    ForeignKey(tuple(f"{prefix}enabled" for prefix in _CHANGELOG), OptionKind.SWITCH, True, "statelog is the changelog"),
    ForeignKey(tuple(f"{prefix}storage" for prefix in _CHANGELOG), OptionKind.TEXT, "filesystem", "for tests in memory, open a location such as memory://test"),
    ForeignKey(tuple(f"{prefix}periodic-materialize.enabled" for prefix in _CHANGELOG), OptionKind.SWITCH, True, "without snapshots the log grows without bound; raise the bounds in the section `snapshot` instead"),
    ForeignKey(tuple(f"{prefix}periodic-materialize.interval" for prefix in _CHANGELOG), OptionKind.DURATION, None, "snapshots are written when the log has grown, not by the clock"),
    ForeignKey(tuple(f"{prefix}max-failures-allowed" for prefix in _CHANGELOG), OptionKind.COUNT, None, "a failed snapshot fails no micro-batch and is tried again later"),
    ForeignKey((*(f"{prefix}upload.buffer-size" for prefix in _DFS), "changelog.upload.buffer-size", "upload.buffer-size"), OptionKind.SIZE, None, "a file is put whole, so that no stream has to be buffered"),
    ForeignKey((f"{_EXECUTION}max-concurrent-checkpoints",), OptionKind.COUNT, 1, "micro-batches commit one after another"),
    ForeignKey((f"{_EXECUTION}file-merging.enabled",), OptionKind.SWITCH, None, "tasks of a batch always share one file"),
)  # fmt: skip
"""Flink's keys that are accepted without being options."""

_FOREIGN_KEYS: Final = {key: foreign for foreign in FOREIGN for key in foreign.keys}
_PREFIXED: Final = {key: spec for spec in OPTIONS for key in (spec.key, *spec.flink_keys)} | {
    prefix + spec.name: spec for spec in OPTIONS if spec.section == "changelog" for prefix in _DFS
}


def find_option(key: str, section: str | None = None) -> OptionSpec | ForeignKey:
    """
    Return the option that *key* names, in any of its spellings.

    Args:
        key: Our key, Flink's, or (where it is unambiguous) a name or field without the section.
        section: Search this section only; None for all of them.

    Raises:
        InvalidOptionsError: There is no such key; the message names the nearest one.
    """
    specs = [spec for spec in OPTIONS if section in (None, spec.section)]
    key = _present_key(key)
    plain = _plain(key)
    exact = _PREFIXED.get(key)
    if exact is not None and exact in specs:
        return exact
    if key in _FOREIGN_KEYS:
        return _FOREIGN_KEYS[key]
    known: dict[str, OptionSpec] = {}
    for spec in specs:
        for name in (spec.key, *spec.flink_keys, spec.name, spec.field):
            known.setdefault(_plain(name), spec)
            known.setdefault(_plain(name).removesuffix("_bytes"), spec)
    for prefix in ("", *map(_plain, _DFS)):
        if (found := known.get(plain.removeprefix(prefix))) is not None:
            return found
    near = difflib.get_close_matches(plain, known, n=1)
    hint = (
        f"; did you mean {known[near[0]].key!r}?"
        if near
        else "; docs/reference/options.md lists all keys"
    )
    raise InvalidOptionsError(f"unknown option {key!r}{hint}", key=key)


def _present_key(key: str) -> str:
    """Return *key* with the present name of its section."""
    for old, new in RENAMED_SECTIONS.items():
        if _plain(key).startswith(f"{old}_"):
            present = new + key.strip()[len(old) :]
            warnings.warn(
                f"option {key!r} is now {present!r}; the old key is accepted for one more version",
                DeprecationWarning,
                stacklevel=3,
            )
            return present
    return key


def variable_of(key: str) -> str:
    """Return the environment variable of a key of ours."""
    return "STATELOG_" + _plain(key).upper()


def _plain(key: str) -> str:
    return key.strip().lower().replace(".", "_").replace("-", "_")
