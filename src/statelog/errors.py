"""
Every error statelog raises, in one tree.

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
    ├── IncompatibleFormatError             written by a newer statelog; upgrade, nothing is damaged
    ├── CapacityError                       more data than one task can hold; use more tasks
    ├── FencedError                         another owner took over; stop, never write again
    ├── CheckpointError                     declined, not found, or damaged: see `Reason`
    └── ProcessorError                      the user's processor failed; names state, key and batch
    InvariantError (AssertionError)         a bug of statelog; do not catch it

The message is the one positional argument.  Every fact is a keyword and an attribute, so errors
can be pickled between Spark's processes.  Secrets of URLs are hidden in both, and a message contains
no character that a terminal would obey (`statelog.plain_text`).
"""

from __future__ import annotations

import enum
from typing import Any

from statelog.plain_text import plain_text
from statelog.redaction import redacted


def _rebuild(cls: type[BaseException], message: str, facts: dict[str, object]) -> BaseException:
    return cls(message, **facts)


class StatelogError(Exception):
    """
    Base of all errors of statelog.

    Args:
        message: What went wrong, where, and what to do.
        facts: Named details (`path`, `offset`, `from_sqn`, `checkpoint_id`, ...); kept as `facts`
            and readable as attributes.
    """

    def __init__(self, message: str = "", **facts: Any) -> None:
        message = plain_text(redacted(message))
        super().__init__(message)
        self.message = message
        self.facts = {
            name: redacted(fact) if isinstance(fact, str) else fact for name, fact in facts.items()
        }

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.facts)


class UsageError(StatelogError, ValueError):
    """The call itself is wrong; fix the call."""


class KeyGroupOutOfRangeError(UsageError):
    """A change names a key group that this writer does not own."""


class ChangesTruncatedError(UsageError):
    """The requested changes are below the truncation point."""


class ChangesNotAppendedError(UsageError):
    """The requested changes have not been appended yet."""


class InvalidOptionsError(UsageError):
    """An option is unknown, has a wrong unit, or contradicts another."""


class RequirementError(UsageError, ImportError):
    """
    A package that a feature needs is missing or too old; the message says how to install it.

    Args:
        message: What needs which package, and the command.
        extra: The extra of statelog that installs it.
        packages: The packages.
    """

    def __init__(
        self, message: str = "", *, extra: str = "", packages: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, extra=extra, packages=packages)


class ClosedError(StatelogError):
    """
    The object was closed; open a new one.

    Not an `OSError`: these are transient, and a caller that repeats a call after an `OSError` would
    repeat this one without end.
    """


class WriterClosedError(ClosedError):
    """The changelog writer was closed while, or before, the call was made."""


class UnavailableError(StatelogError, OSError):
    """A transient fault: the same call may succeed later, and nothing was lost."""


class UploadFailedError(UnavailableError):
    """Every attempt of one upload failed; the changes are still held by the writer."""


class UploadTimeoutError(UploadFailedError, TimeoutError):
    """The last attempt of an upload took too long; `__cause__` is the time-out."""


class BackpressureTimeoutError(UnavailableError, TimeoutError):
    """No upload capacity became free within the allowed time."""


class StoreError(StatelogError, OSError):
    """The object store refused or failed an operation."""


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """The named object does not exist."""


class ObjectExistsError(StoreError, FileExistsError):
    """Put-if-absent found an object of that name."""


class CorruptionError(StatelogError):
    """Bytes are damaged or torn; never retried, never skipped silently."""


class IncompatibleFormatError(StatelogError):
    """The bytes were written by a newer format; nothing is damaged, upgrade statelog."""


class CapacityError(StatelogError):
    """One task, or one key, has more data than one Arrow array holds (2 GiB); use more tasks."""


class FencedError(StatelogError):
    """Another owner took over the state location; this one must stop writing."""


class Reason(enum.StrEnum):
    """Why a checkpoint cannot be made or used, and what to do; equal to its text."""

    NOT_FOUND = "not_found"
    """
    The location does not contain such a checkpoint, tag or record.

    Choose one that `statelog checkpoints` or `statelog tag` lists.
    """
    SUBSUMED = "subsumed"
    """
    The checkpoint existed, and it or what leads to it was deleted.

    Choose a retained one; retain more (`retainedCheckpoints`), or tag those that you need.
    """
    DAMAGED = "damaged"
    """
    An object of the checkpoint is damaged.

    `statelog verify` lists all damage; use another checkpoint, or `statelog verify --repair`.
    """
    GAP = "gap"
    """
    State and sources do not follow each other: micro-batches are missing between them.

    `statelog rewind` lists the micro-batches at which they agree.
    """
    ACTIVE = "active"
    """A query runs, or committed during the call. Stop the query, or repeat the call."""
    CONTENDED = "contended"
    """Other owners claimed the location each time. Look whether the job is started more than once."""
    OTHER_QUERY = "other_query"
    """
    The state is the one of another query.

    Use its checkpointLocation, another location, or `adopt=True`.
    """
    MISSING = "missing"
    """
    The query has finished micro-batches, and the location is empty.

    Set `stateLocation` to where the state is.
    """
    NOT_EMPTY = "not_empty"
    """`checkpoint="empty"` was asked for, and the location contains a checkpoint. Use an empty location."""
    MAX_PARALLELISM = "max_parallelism"
    """
    The location has another number of key groups than the query asks for.

    Leave `maxParallelism` as it was: it is fixed for the lifetime of the state.
    """
    INCOMPATIBLE = "incompatible"
    """The stored state does not fit the processor or the call. The message names the difference."""
    FOREIGN_STATE = "foreign_state"
    """The location or checkpointLocation contains state of another owner. The message names it."""
    PARENT = "parent"
    """The parent of a fork cannot be read. Name its place: `--parent URL`, or the store option `parents`."""
    PINNED = "pinned"
    """A tag or a fork retains what is to be deleted. Delete the tag (`statelog tag --remove`), or wait for it."""
    NOT_NEWER = "not_newer"
    """
    The checkpoint does not follow the one that the reader or table has.

    Begin again with a newer one, or with a new table.
    """
    OBJECTS_MISSING = "objects_missing"
    """Objects of the checkpoint do not exist. `statelog verify` lists them."""
    UNDELIVERED = "undelivered"
    """The output of a micro-batch may not have reached the sink. Start the query once more, and stop it."""
    IN_PROGRESS = "in_progress"
    """A checkpoint or micro-batch is under way. Repeat the call in a moment."""
    COMMITTING = "committing"
    """The checkpoint is being committed. Call `complete` again, or `decline`."""
    DECLINED = "declined"
    """The checkpoint was declined. Trigger the next one."""
    INCOMPLETE = "incomplete"
    """Not all tasks acknowledged the checkpoint. Decline it, and trigger the next one."""
    NOT_NEXT = "not_next"
    """The number is not the next one of the location. Trigger `next_checkpoint_id`."""
    UNKNOWN = "unknown"
    """The checkpoint is not under way. Trigger it first."""
    UNKNOWN_RANGE = "unknown_range"
    """The checkpoint was not triggered for these key groups. Trigger it for the ranges of all tasks."""
    FOREIGN_KEY_GROUPS = "foreign_key_groups"
    """
    A task acknowledged state of key groups that are not its own.

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

    Args:
        message: What failed, where, and what to do.
        reason: A `Reason` or its text; None where only the text of an error arrived from another process.
        facts: See `StatelogError`.
    """

    def __init__(
        self, message: str = "", *, reason: Reason | str | None = None, **facts: object
    ) -> None:
        self.reason = None if reason is None else Reason(reason)
        super().__init__(message, **facts, **({} if reason is None else {"reason": self.reason}))


class ProcessorError(StatelogError):
    """The user's stateful processor raised, or produced values that do not fit its schema."""


class InvariantError(AssertionError):
    """An internal invariant was violated: a bug, please report it."""


def check(condition: bool, message: str) -> None:
    """
    Raise `InvariantError` unless *condition* holds; unlike `assert` it is never compiled away.

    Raises:
        InvariantError: *condition* is false.
    """
    if not condition:
        raise InvariantError(message)
