"""
All errors that statelog raises, in one class hierarchy.

A class exists only where a caller would act differently::

    StatelogError
    ├── UsageError (ValueError)             fix the call
    │   ├── KeyGroupOutOfRangeError             the change belongs to another task
    │   ├── ChangesTruncatedError               the requested changes were truncated
    │   ├── ChangesNotAppendedError             the requested changes do not exist yet
    │   ├── InvalidOptionsError                 unknown key, wrong unit, contradictory values
    │   └── RequirementError (ImportError)      a package is missing; the message says how to get it
    ├── ClosedError                         the object was closed; open a new one
    │   └── WriterClosedError
    ├── UnavailableError (OSError)          try again; nothing was lost
    │   ├── UploadFailedError                   all attempts of one upload failed
    │   │   └── UploadTimeoutError (TimeoutError)   the last of them took too long
    │   └── BackpressureTimeoutError (TimeoutError)   no upload capacity in time
    ├── StoreError (OSError)                the object store refused or failed
    │   ├── ObjectNotFoundError (FileNotFoundError)
    │   └── ObjectExistsError (FileExistsError)
    ├── CorruptionError                     damaged bytes; do not retry, do not skip
    ├── IncompatibleFormatError             written by a different version of statelog; nothing is damaged
    ├── CapacityError                       more data than one task can hold; use more tasks
    ├── FencedError                         another owner took over; stop, never write again
    ├── CheckpointError                     declined, not found, or damaged: see `Reason`
    │   ├── CheckpointNotFoundError             the location does not contain it
    │   │   └── CheckpointSubsumedError             it existed, and was deleted
    │   ├── CheckpointDamagedError              use another checkpoint, or repair
    │   ├── BatchGapError                       state and sources do not follow each other
    │   └── QueryActiveError                    stop the query, or repeat the call
    └── ProcessorError                      the user's processor failed; names state, key and batch
    InvariantError (AssertionError)         a bug of statelog; do not catch it

The message is the one positional argument.  Every fact is an attribute of the class, and a keyword,
so errors can be pickled between Spark's processes.  Secrets of URLs are hidden in both, and a
message contains no character that a terminal would obey (`statelog.plain_text`).
"""

from __future__ import annotations

import enum
from typing import Final, Self, TypeAlias

from statelog.plain_text import plain_text
from statelog.redaction import redacted

Fact: TypeAlias = str | int | bool | tuple[object, ...] | None
"""A detail of an error."""


def _rebuild(cls: type[BaseException], message: str, facts: dict[str, Fact]) -> BaseException:
    return cls(message, **facts)


class StatelogError(Exception):
    """
    The base class of all errors of statelog.

    Args:
        message: What went wrong, where, and what to do.
        facts: Details, by the names of the attributes below and of the subclass.
    """

    message: str
    url: str | None = None
    """The store or location."""
    path: str | None = None
    """The object in the store, or the file."""
    checkpoint_id: int | None = None
    batch_id: int | None = None
    """The micro-batch."""

    def __init__(self, message: str = "", **facts: Fact) -> None:
        self.message = plain_text(redacted(message))
        super().__init__(self.message)
        for name, fact in facts.items():
            setattr(self, name, redacted(fact) if isinstance(fact, str) else fact)

    @property
    def facts(self) -> dict[str, Fact]:
        """The facts that describe this error, by name."""
        return {name: fact for name, fact in vars(self).items() if hasattr(type(self), name)}

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.facts)


class UsageError(StatelogError, ValueError):
    """The call itself is wrong; fix the call."""

    fields: tuple[str, ...] = ()
    """The arguments or options that are wrong."""


class KeyGroupOutOfRangeError(UsageError):
    """A change names a key group that this writer does not own."""

    key_group: int | None = None


class ChangesTruncatedError(UsageError):
    """The requested changes are below the truncation point."""

    from_sqn: int | None = None
    truncated_to_sqn: int | None = None


class ChangesNotAppendedError(UsageError):
    """The requested changes have not been appended yet."""

    from_sqn: int | None = None
    to_sqn: int | None = None
    active_sqn: int | None = None
    """The number of the next change set."""


class InvalidOptionsError(UsageError):
    """An option is unknown, has a wrong unit, or contradicts a different option."""

    key: str | None = None
    origin: str | None = None
    """Where the value was read."""


class RequirementError(UsageError, ImportError):
    """A package that a feature needs is missing or too old; the message says how to install it."""

    extra: str = ""
    """The extra of statelog that installs it."""
    packages: tuple[str, ...] = ()


class ClosedError(StatelogError):
    """
    The object was closed; open a new one.

    Not an `OSError`: these are transient, and a caller that repeats a call after an `OSError` would
    repeat this one without end.
    """


class WriterClosedError(ClosedError):
    """The changelog writer was closed while, or before, the call was made."""

    log_id: int | None = None


class UnavailableError(StatelogError, OSError):
    """A transient fault: the same call may succeed later, and nothing was lost."""


class UploadFailedError(UnavailableError):
    """Every attempt of one upload failed; the writer still holds the changes."""

    log_id: int | None = None


class UploadTimeoutError(UploadFailedError, TimeoutError):
    """The last attempt of an upload took too long; `__cause__` is the time-out."""


class BackpressureTimeoutError(UnavailableError, TimeoutError):
    """No upload capacity became free within the allowed time."""

    size_bytes: int | None = None


class StoreError(StatelogError, OSError):
    """The object store refused or failed an operation."""

    operation: str | None = None
    reason: str | None = None
    """`transfer`: the bytes changed on their way.  `put_if_absent`: the store does not support it."""


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """The named object does not exist."""


class ObjectExistsError(StoreError, FileExistsError):
    """An object of that name already exists (put-if-absent)."""


class CorruptionError(StatelogError):
    """Bytes are damaged or incomplete; this is never retried, and never skipped silently."""

    offset: int | None = None


class IncompatibleFormatError(StatelogError):
    """The bytes have a format version that this statelog does not read; nothing is damaged."""


class CapacityError(StatelogError):
    """A task or a key has more data than an Arrow array can hold (2 GiB); use more tasks."""


class FencedError(StatelogError):
    """A different owner took over the state location; this owner must stop writing."""


class Reason(enum.StrEnum):
    """The reason why a checkpoint cannot be created or used; equal to its text."""

    NOT_FOUND = "not_found"
    """
    The location does not contain such a checkpoint, tag or record.

    Choose one that `statelog checkpoints` or `statelog tag` lists.
    """
    SUBSUMED = "subsumed"
    """
    The checkpoint existed, but it or an object that leads to it was deleted.

    Choose a retained one. Retain more (`retainedCheckpoints`), or tag the ones that you need.
    """
    DAMAGED = "damaged"
    """
    An object of the checkpoint is damaged.

    `statelog verify` lists all damage; use another checkpoint, or `statelog verify --repair`.
    """
    GAP = "gap"
    """
    Micro-batches are missing between the state and the sources.

    `statelog rewind` lists the micro-batches at which they agree.
    """
    ACTIVE = "active"
    """A query is running, or committed during the call. Stop the query, or repeat the call."""
    CONTENDED = "contended"
    """Other owners claimed the location each time. Check whether the job was started more than once."""
    OTHER_QUERY = "other_query"
    """
    The state belongs to a different query.

    Use its checkpointLocation, another location, or `adopt=True`.
    """
    MISSING = "missing"
    """
    The query has finished micro-batches, but the location is empty.

    Set `stateLocation` to where the state is.
    """
    NOT_EMPTY = "not_empty"
    """`checkpoint="empty"` was requested, but the location contains a checkpoint. Use an empty location."""
    MAX_PARALLELISM = "max_parallelism"
    """
    The location's number of key groups differs from the query's.

    Restore the old `maxParallelism`: it is fixed for the lifetime of the state.
    """
    INCOMPATIBLE = "incompatible"
    """The stored state does not fit the processor or the call. The message names the difference."""
    FOREIGN_STATE = "foreign_state"
    """The location or checkpointLocation contains state of a different owner. The message names it."""
    PARENT = "parent"
    """The parent of a fork cannot be read. Specify its location: `--parent URL`, or the store option `parents`."""
    PINNED = "pinned"
    """A tag or a fork retains objects that the call would delete. Delete the tag (`statelog tag --remove`), or wait for it."""
    NOT_NEWER = "not_newer"
    """
    The checkpoint does not follow the one that the reader or table contains.

    Start again with a newer one, or with a new table.
    """
    OBJECTS_MISSING = "objects_missing"
    """Objects of the checkpoint do not exist. `statelog verify` lists them."""
    UNDELIVERED = "undelivered"
    """The output of a micro-batch may not have reached the sink. Start the query again, and then stop it."""
    IN_PROGRESS = "in_progress"
    """A checkpoint or micro-batch is in progress. Repeat the call in a moment."""
    COMMITTING = "committing"
    """The checkpoint is being committed. Call `complete` again, or `decline`."""
    DECLINED = "declined"
    """The checkpoint was declined. Trigger the next one."""
    INCOMPLETE = "incomplete"
    """Not all tasks acknowledged the checkpoint. Decline it, and trigger the next one."""
    NOT_NEXT = "not_next"
    """The id is not the next one of the location. Trigger `next_checkpoint_id`."""
    UNKNOWN = "unknown"
    """The checkpoint is not in progress. Trigger it first."""
    UNKNOWN_RANGE = "unknown_range"
    """The checkpoint was not triggered for these key groups. Trigger it for the ranges of all tasks."""
    FOREIGN_KEY_GROUPS = "foreign_key_groups"
    """
    A task acknowledged state of key groups that it does not own.

    Acknowledge the ranges that were triggered.
    """
    SNAPSHOT_TOO_NEW = "snapshot_too_new"
    """
    A task acknowledged a snapshot of a later checkpoint.

    Acknowledge a snapshot of this checkpoint or of an earlier one.
    """


class CheckpointError(StatelogError):
    """
    A checkpoint was declined, cannot be found, or cannot be used.

    As the number of an `OSError` does, the reason chooses the class: `CheckpointError("...",
    reason="gap")` is a `BatchGapError`.

    Args:
        message: What failed, where, and what to do.
        reason: A `Reason` or its text; None where only the text of an error arrived from another
            process.
        facts: See `StatelogError`.
    """

    reason: Reason | None = None
    missing: tuple[object, ...] = ()
    """The objects, or the key groups, that are missing."""
    usable_id: int | None = None
    """The newest older checkpoint that can be restored."""

    def __new__(
        cls, message: str = "", *, reason: Reason | str | None = None, **facts: Fact
    ) -> Self:
        kind = cls if reason is None else CLASSES.get(Reason(reason), cls)
        return super().__new__(kind if issubclass(kind, cls) else cls, message)

    def __init__(
        self, message: str = "", *, reason: Reason | str | None = None, **facts: Fact
    ) -> None:
        super().__init__(message, **facts)
        if reason is not None:
            self.reason = Reason(reason)


class CheckpointNotFoundError(CheckpointError):
    """The location does not contain such a checkpoint, tag or record."""

    reason = Reason.NOT_FOUND


class CheckpointSubsumedError(CheckpointNotFoundError):
    """The checkpoint existed, but it or an object that leads to it was deleted."""

    reason = Reason.SUBSUMED


class CheckpointDamagedError(CheckpointError):
    """An object of the checkpoint is damaged."""

    reason = Reason.DAMAGED


class BatchGapError(CheckpointError):
    """Micro-batches are missing between the state and its sources."""

    reason = Reason.GAP


class QueryActiveError(CheckpointError):
    """A query is running, or committed during the call."""

    reason = Reason.ACTIVE


CLASSES: Final[dict[Reason, type[CheckpointError]]] = {
    Reason.NOT_FOUND: CheckpointNotFoundError,
    Reason.SUBSUMED: CheckpointSubsumedError,
    Reason.DAMAGED: CheckpointDamagedError,
    Reason.GAP: BatchGapError,
    Reason.ACTIVE: QueryActiveError,
}
"""The reasons that have a class, because callers act on them."""


class ProcessorError(StatelogError):
    """The user's stateful processor raised, or produced values that do not fit its schema."""

    key: str | None = None
    key_group: int | None = None
    state: str | None = None
    """The name of the state variable."""
    method: str | None = None
    what: str = ""
    """The failure, without its location."""


class InvariantError(AssertionError):
    """An internal invariant was violated. This is a bug; please report it."""


def check(condition: bool, message: str) -> None:
    """
    Raise `InvariantError` unless *condition* is true; unlike `assert`, it always runs.

    Raises:
        InvariantError: *condition* is false.
    """
    if not condition:
        raise InvariantError(message)
