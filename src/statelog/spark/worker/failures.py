"""Failures of a task on their way to the driver: the sentence first, then the processor's lines."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from statelog import errors
from statelog.errors import CheckpointError, CorruptionError, ObjectNotFoundError, StatelogError
from statelog.spark.query.processor_failures import ProcessExit

_END: Final = "[end of what the task reported]"
_OWN_FOLDER: Final = str(Path(errors.__file__).parent) + os.sep
_MOST_LINES: Final = 60
Result = TypeVar("Result")
# ------------------------------------------------------------------------------------- in a task


@contextlib.contextmanager
def reported_to_driver(location: str) -> Iterator[None]:
    """
    Raise statelog's errors of a task in the form that `cause_of` finds in Spark's text.

    Args:
        location: The state location, for what can be done about a file in it.
    """
    try:
        yield
    except StatelogError as failure:
        error = _with_remedy(failure, location)
        lines = processor_lines(error.__cause__)
        # Without the chain: a worker prints it before the error, and the driver needs it once.
        raise _copy(error, f"{error.message}{lines}\n{_END}") from None


def _copy(error: StatelogError, message: str) -> StatelogError:
    """Return an error of the same class, or of its nearest in the tree, with another message."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    copy: StatelogError = kind(message, **error.facts)
    return copy


def _with_remedy(error: StatelogError, location: str) -> StatelogError:
    """Return an error that says what to do where an object of the state cannot be read."""
    if not isinstance(error, ObjectNotFoundError | CorruptionError):
        return error
    missing = isinstance(error, ObjectNotFoundError)
    return CheckpointError(
        f"the state in {location} cannot be read: {error.message}. An object that its newest "
        f"checkpoint needs is {'missing' if missing else 'damaged'}. Run `statelog verify {location}` "
        "to see which checkpoints are whole, put the object back from a copy, or go back to a whole "
        "checkpoint by its id: restoreFrom=<checkpoint id>",
        reason="missing" if missing else "damaged",
    )


def processor_lines(error: BaseException | None) -> str:
    """Return the traceback of a processor's error without the frames of statelog itself."""
    if error is None:
        return ""
    told = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in told.stack if not frame.filename.startswith(_OWN_FOLDER)]
    if not frames:
        return ""
    told.stack = traceback.StackSummary.from_list(frames)
    lines = "".join(told.format()).rstrip("\n").split("\n")
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        left_out = f"  ... {len(lines) - _MOST_LINES} lines left out ..."
        lines = [*lines[:half], left_out, *lines[-half:]]
    return "\n" + "\n".join(lines)


def ends_of_process_are_errors(run: Callable[..., Result]) -> Callable[..., Result]:
    """
    Let `os._exit` raise in the thread that calls *run*, while it runs.

    The end of a worker would leave no word of the processor, the key and the micro-batch.  Other
    threads, and processes that a processor forks, end as they ask to.
    """

    @functools.wraps(run)
    def guarded(*args: Any, **kwargs: Any) -> Result:
        process, thread, leave = os.getpid(), threading.get_ident(), os._exit

        def refuse(status: int) -> NoReturn:
            if os.getpid() == process and threading.get_ident() == thread:
                raise ProcessExit(f"os._exit({status!r})")
            leave(status)

        os._exit = refuse
        try:
            return run(*args, **kwargs)
        finally:
            os._exit = leave

    return guarded
