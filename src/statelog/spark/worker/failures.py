"""Report a task's failure to the driver, starting with its message."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn, ParamSpec, TypeVar

from statelog import errors
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    ObjectNotFoundError,
    ProcessorError,
    StatelogError,
)
from statelog.spark.query.processor_checks import ProcessExit
from statelog.spark.rows.unfit_output import UnfitOutputError

END_OF_REPORT: Final = "[end of what the task reported]"
_OWN_FOLDER: Final = str(Path(errors.__file__).parent) + os.sep
_MOST_LINES: Final = 60
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@contextlib.contextmanager
def reported_to_driver(location: str) -> Iterator[None]:
    """Raise statelog's errors in a form that `cause_of` can find in Spark's text."""
    try:
        yield
    except StatelogError as failure:
        error = _with_remedy(failure, location)
        lines = processor_lines(error.__cause__)
        # Without the chain, which a worker would print before the error a second time.
        raise with_message(error, f"{error.message}{lines}\n{END_OF_REPORT}") from None


def with_message(error: StatelogError, message: str) -> StatelogError:
    """Return an error of the closest public class, but with a different message."""
    # The driver knows the public classes only; a subclass would not be found there.
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    copy: StatelogError = kind(message, **error.facts)
    return copy


def _with_remedy(error: StatelogError, location: str) -> StatelogError:
    """Add advice to the error about an object that cannot be read."""
    if not isinstance(error, ObjectNotFoundError | CorruptionError):
        return error
    missing = isinstance(error, ObjectNotFoundError)
    return CheckpointError(
        f"the state in {location} cannot be read: {error.message}. An object that its newest "
        f"checkpoint needs is {'missing' if missing else 'damaged'}. Run `statelog verify {location}` "
        "to see which checkpoints are complete, restore the object from a copy, or go back to a "
        "complete checkpoint: checkpoint=<checkpoint id>",
        reason="missing" if missing else "damaged",
    )


def error_text(error: BaseException) -> tuple[str, str]:
    """Return the class and the text of the error that made a call fail."""
    if isinstance(error.__cause__, UnfitOutputError):
        error = error.__cause__
    cause = error.__cause__ if isinstance(error, ProcessorError) else error
    if cause is None:  # an output that does not fit: the rest of the message names the call
        return f"{ProcessorError.__module__}.{ProcessorError.__qualname__}", _what(error)
    kind = type(cause)
    is_builtin = kind.__module__ == "builtins"
    name = kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"
    try:
        return name, storable(str(cause))
    except Exception:  # the text is made by a class of the user
        return name, ""


def storable(text: str) -> str:
    """Make text encodable as UTF-8 by escaping unpaired surrogates."""
    return text.encode(errors="backslashreplace").decode()


def _what(error: BaseException) -> str:
    return str(getattr(error, "what", error))


def processor_lines(error: BaseException | None) -> str:
    """Return the traceback of a processor's error without statelog's own frames."""
    if error is None:
        return ""
    report = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in report.stack if not frame.filename.startswith(_OWN_FOLDER)]
    if not frames:
        return ""
    report.stack = traceback.StackSummary.from_list(frames)
    lines = "".join(report.format()).rstrip("\n").split("\n")
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        left_out = f"  ... {len(lines) - _MOST_LINES} lines omitted ..."
        lines = [*lines[:half], left_out, *lines[-half:]]
    return storable("\n" + "\n".join(lines))


def ends_of_process_are_errors(
    run: Callable[Parameters, Result],
) -> Callable[Parameters, Result]:
    """
    Make `os._exit` raise an error in the thread that calls *run*.

    The end of a worker would hide the processor, the key and the micro-batch.  Other threads, and
    child processes of a processor, end as usual.
    """

    @functools.wraps(run)
    def guarded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        process = os.getpid()
        thread = threading.get_ident()
        # Replaced for the time of the call, and in this process and thread only.
        leave = os._exit

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
