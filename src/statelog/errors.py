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
    ├── CheckpointError                     declined, not found, or damaged (see `reason`)
    └── ProcessorError                      the user's processor failed; names state, key and batch
    InvariantError (AssertionError)         a bug of statelog; do not catch it

The message is the one positional argument.  Every fact is a keyword and an attribute, so errors
can be pickled between Spark's processes.  Secrets of URLs are hidden in both, and a message contains
no character that a terminal would obey (`statelog.plain_text`).
"""

from __future__ import annotations

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


class CheckpointError(StatelogError):
    """A checkpoint was declined, cannot be found, or cannot be used (`reason` says which)."""


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
