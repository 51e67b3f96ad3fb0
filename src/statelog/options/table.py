"""
The table of all options: their keys in every spelling, their units and their meaning.

A key of ours is `<section>.<name>`.  Flink's keys stand beside it, the present one first and the
deprecated ones after it.  Keys of Flink's that mean nothing here are known by name too, so that a
setting which cannot be had is refused and one without effect is not taken for a slip.
Source: Flink 2.3.0, FsStateChangelogOptions, StateChangelogOptions, CheckpointingOptions.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from statelog.errors import InvalidOptionsError
from statelog.options import units

_DFS: Final = ("state.changelog.dstl.dfs.", "state.backend.changelog.dstl.dfs.", "dstl.dfs.")
_CHANGELOG: Final = ("state.changelog.", "state.backend.changelog.")
_EXECUTION: Final = "execution.checkpointing."


class OptionKind(enum.Enum):
    """What a value is, and how it is written."""

    SIZE = "size"
    COUNT = "count"
    RATIO = "number"
    DURATION = "duration"
    SWITCH = "true or false"
    TEXT = "text"
    PATHS = "paths"

    def parse(self, value: Any, key: str) -> Any:
        """
        Return *value* in the type of this kind.

        Raises:
            InvalidOptionsError: It cannot be understood.
        """
        return _PARSERS[self](value, key=key)


_PARSERS: Final[Mapping[OptionKind, Callable[..., Any]]] = {
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
        section: Which of the option classes has it.
        field: Its name there.
        name: Its name in a key, after the section.
        kind: What its value is.
        flink_keys: Flink's keys, the present one first.
        description: What it does, in a sentence.
        effect: Whether anything depends on it.
    """

    section: str
    field: str
    name: str
    kind: OptionKind
    flink_keys: tuple[str, ...]
    description: str
    effect: bool = True

    @property
    def key(self) -> str:
        """Our key."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "STATELOG_" + self.key.replace(".", "_").replace("-", "_").upper()

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
        kind: What its value is.
        allowed: The one value that statelog can give; None if any is fine, without effect.
        reason: Why.
    """

    keys: tuple[str, ...]
    kind: OptionKind
    allowed: Any
    reason: str


def _dfs(
    field: str, name: str, kind: OptionKind, description: str, effect: bool = True
) -> OptionSpec:
    keys = tuple(prefix + name for prefix in _DFS)
    return OptionSpec("changelog", field, name, kind, keys, description, effect)


OPTIONS: Final = (
    _dfs("base_path", "base-path", OptionKind.TEXT, "Root of the changelog files, where it is not given in code."),
    _dfs("compression_enabled", "compression.enabled", OptionKind.SWITCH, "Snappy-frame the files."),
    _dfs(
        "preemptive_persist_threshold_bytes",
        "preemptive-persist-threshold",
        OptionKind.SIZE,
        "Bytes a writer holds before it uploads them without being asked; 0 uploads every append.",
    ),
    _dfs("batch_persist_delay", "batch.persist-delay", OptionKind.DURATION, "Longest time an upload waits for others to share its file."),
    _dfs("batch_persist_size_threshold_bytes", "batch.persist-size-threshold", OptionKind.SIZE, "Waiting bytes, of all writers, that are uploaded at once; at most `changelog.upload.max-in-flight`."),
    _dfs("upload_buffer_size_bytes", "upload.buffer-size", OptionKind.SIZE, "Flink's stream buffer; a file is put whole, so there is no stream to buffer.", False),
    _dfs("upload_num_threads", "upload.num-threads", OptionKind.COUNT, "Uploads at the same time."),
    _dfs("discard_num_threads", "discard.num-threads", OptionKind.COUNT, "Deletions at the same time."),
    _dfs("upload_max_in_flight_bytes", "upload.max-in-flight", OptionKind.SIZE, "Bytes queued or uploading, of all writers; above it callers wait."),
    _dfs("upload_retry_policy", "upload.retry-policy", OptionKind.TEXT, "`fixed`, `none`, or (not in Flink) `exponential`."),
    _dfs("upload_timeout", "upload.timeout", OptionKind.DURATION, "Age at which an attempt gets a rival; 0 for never."),
    _dfs("upload_max_attempts", "upload.max-attempts", OptionKind.COUNT, "Attempts of one upload, the first included."),
    _dfs("upload_next_attempt_delay", "upload.next-attempt-delay", OptionKind.DURATION, "Delay after an error; for `exponential` the first one."),
    OptionSpec(
        "changelog",
        "download_local_cache_idle_timeout",
        "download.local-cache.idle-timeout",
        OptionKind.DURATION,
        tuple(f"{prefix}download.local-cache.idle-timeout-ms" for prefix in _DFS),
        "Life of a downloaded file after its last use, where a storage keeps such files on local disk.",
    ),
    OptionSpec("changelog", "download_local_cache_max_bytes", "download.local-cache.max-size", OptionKind.SIZE, (), "Bytes of downloaded files that a storage keeps on local disk at most; larger files pass through."),
    OptionSpec("changelog", "batch_fixed_delay", "batch.fixed-delay", OptionKind.SWITCH, (), "Wait for the delay even if no upload is running, as Flink does."),
    OptionSpec("changelog", "backpressure_timeout", "backpressure-timeout", OptionKind.DURATION, (), "Longest wait of a caller for upload capacity."),
    OptionSpec("checkpoint", "retained", "retained", OptionKind.COUNT, (f"{_EXECUTION}num-retained", "state.checkpoints.num-retained"), "Completed checkpoints that can be restored."),
    OptionSpec("checkpoint", "compress_metadata", "compress-metadata", OptionKind.SWITCH, (), "Snappy-frame the change sets inside `_metadata`."),
    OptionSpec("checkpoint", "min_age_of_orphans", "min-age-of-orphans", OptionKind.DURATION, (), "A sweep leaves younger objects alone; must exceed the time from an upload to the commit of its checkpoint."),
    OptionSpec(
        "stream",
        "data_inline_threshold_bytes",
        "data-inline-threshold",
        OptionKind.SIZE,
        (f"{_EXECUTION}data-inline-threshold", "state.storage.fs.memory-threshold", "state.backend.fs.memory-threshold"),
        "State up to this size stays in its handle; at most 1 mb.",
    ),
    OptionSpec(
        "stream",
        "write_buffer_size_bytes",
        "write-buffer-size",
        OptionKind.SIZE,
        (f"{_EXECUTION}write-buffer-size", "state.storage.fs.write-buffer-size", "state.backend.fs.write-buffer-size"),
        "Flink's stream buffer, raised to the threshold; an object is put whole here.",
        False,
    ),
    OptionSpec("materialization", "log_to_snapshot_ratio", "log-to-snapshot-ratio", OptionKind.RATIO, (), "The log may grow to this many times the size of the state before snapshots have covered it."),
    OptionSpec("materialization", "min_log_bytes", "min-log-size", OptionKind.SIZE, (), "A smaller log is never due by size."),
    OptionSpec("materialization", "max_log_handles", "max-log-handles", OptionKind.COUNT, (), "Checkpoints whose log one key group may have to replay, whatever its size."),
    OptionSpec("materialization", "slice_bytes", "slice-size", OptionKind.SIZE, (), "Size of the snapshot that one micro-batch writes; a state of more than 64 such slices is cut into larger ones."),
    OptionSpec("local-recovery", "backup", "backup", OptionKind.SWITCH, (f"{_EXECUTION}local-backup.enabled",), "Write local copies of uploaded files; as `local-recovery.recovery` unless set."),
    OptionSpec("local-recovery", "recovery", "recovery", OptionKind.SWITCH, ("execution.state-recovery.from-local", "state.backend.local-recovery"), "Read local copies where there are some."),
    OptionSpec("local-recovery", "directories", "directories", OptionKind.PATHS, (f"{_EXECUTION}local-backup.dirs", "taskmanager.state.local.root-dirs"), "Directories of this host for local copies."),
)  # fmt: skip
"""Every option."""

SECTIONS: Final = tuple(dict.fromkeys(spec.section for spec in OPTIONS))

FOREIGN: Final = (
    ForeignKey(tuple(f"{prefix}enabled" for prefix in _CHANGELOG), OptionKind.SWITCH, True, "statelog is the changelog"),
    ForeignKey(tuple(f"{prefix}storage" for prefix in _CHANGELOG), OptionKind.TEXT, "filesystem", "for tests in memory, open a location such as memory://test"),
    ForeignKey(tuple(f"{prefix}periodic-materialize.enabled" for prefix in _CHANGELOG), OptionKind.SWITCH, True, "without snapshots the log grows for ever; raise the bounds of the section materialization instead"),
    ForeignKey(tuple(f"{prefix}periodic-materialize.interval" for prefix in _CHANGELOG), OptionKind.DURATION, None, "snapshots are written when the log has grown, not by the clock"),
    ForeignKey(tuple(f"{prefix}max-failures-allowed" for prefix in _CHANGELOG), OptionKind.COUNT, None, "a snapshot that fails is tried again later; its micro-batch is committed without it"),
    ForeignKey((f"{_EXECUTION}max-concurrent-checkpoints",), OptionKind.COUNT, 1, "micro-batches commit one after another"),
    ForeignKey((f"{_EXECUTION}file-merging.enabled",), OptionKind.SWITCH, None, "tasks of a batch share one file anyway"),
)  # fmt: skip
"""Flink's keys that are understood without being options."""

_FOREIGN_KEYS: Final = {key: foreign for foreign in FOREIGN for key in foreign.keys}
_PREFIXED: Final = {key: spec for spec in OPTIONS for key in (spec.key, *spec.flink_keys)} | {
    prefix + spec.name: spec for spec in OPTIONS if spec.section == "changelog" for prefix in _DFS
}


def find_option(key: str, section: str | None = None) -> OptionSpec | ForeignKey:
    """
    Return what *key* names, in any of its spellings.

    Args:
        key: Our key, Flink's, or (where it is clear) a name or field without the section.
        section: Look at this section only; None for all of them.

    Raises:
        InvalidOptionsError: Nothing is called so; the message names the nearest key.
    """
    specs = [spec for spec in OPTIONS if section in (None, spec.section)]
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
        else "; docs/reference/options.md lists all"
    )
    raise InvalidOptionsError(f"unknown option {key!r}{hint}", key=key)


def _plain(key: str) -> str:
    return key.strip().lower().replace(".", "_").replace("-", "_")
