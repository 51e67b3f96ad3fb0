"""
Check a user's processor before the query starts, and describe errors in it.

The driver pickles a processor as Spark does to send it to the workers.  A processor in which
`yield` is missing, or is where it must not be, gets a warning: a method that only makes Rows is not
an error in Python, nor for the query, and outputs nothing.  What a method returns is read from its
bytecode.  A warning needs certainty: a method that is not a plain function, or whose returns are
not constants, is left alone.
"""

from __future__ import annotations

import dis
import inspect
import logging
from collections.abc import Sequence
from types import CodeType, FunctionType
from typing import Final

from pyspark import cloudpickle
from pyspark.errors import PySparkException

from statelog.arguments import given
from statelog.errors import UsageError
from statelog.spark.query.face import PROCESSORS, AnyProcessor, face_of
from statelog.spark.rows.spark_versions import condition_of

_log = logging.getLogger("statelog.spark")

_BROADCAST: Final = "BROADCAST_VARIABLE_NOT_LOADED"
_SUSPENDED: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Flags of functions whose call does not run their body."""

_MOST_COLUMNS: Final = 6


class ProcessExit(SystemExit):
    """A processor called `os._exit`."""


def described(error: BaseException) -> str:
    """Describe the error as a clause that fits into a message."""
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, SystemExit):
        call = str(error) if isinstance(error, ProcessExit) else f"sys.exit({error.code!r})"
        return (
            f"it called {call}, but a processor must not end its process: raise an exception to "
            "fail the micro-batch, or return to continue"
        )
    return f"{type(error).__name__}: {error}"


def copy_of(processor: AnyProcessor) -> AnyProcessor:
    """Return a processor as a worker would receive it; reject broadcast variables in it."""
    data = pickled(processor)
    try:
        copy: AnyProcessor = cloudpickle.loads(data)
    except PySparkException as error:
        if condition_of(error) != _BROADCAST:
            raise
        raise UsageError(
            f"{type(processor).__name__} contains a broadcast variable, which Spark sends to the workers "
            "only with functions, not with a processor; Spark's transformWithState fails "
            "too. Store the value in the processor instead (self.table = variable.value), or load a large "
            "one in init(), for example from a file that you distribute with "
            "spark.sparkContext.addFile and find with SparkFiles.get(name)"
        ) from error
    return copy


def pickled(processor: AnyProcessor) -> bytes:
    """Pickle a processor as Spark does for the workers; raise if that is not possible."""
    if isinstance(processor, type):
        raise UsageError(
            f"statefulProcessor is the class {processor.__name__}; pass an instance: "
            f"{processor.__name__}(...)"
        )
    methods = ("init", face_of(processor).methods.rows)
    if not all(callable(getattr(processor, name, None)) for name in methods):
        raise UsageError(f"statefulProcessor must be {PROCESSORS}, not {given(processor)}")
    try:
        data: bytes = cloudpickle.dumps(processor)
    except Exception as error:
        raise UsageError(
            f"{type(processor).__name__} cannot be pickled, so Spark cannot send it to its "
            f"workers: {_unpicklable_attribute(processor)}{error}. Create such objects in init()"
        ) from error
    return data


def _unpicklable_attribute(processor: AnyProcessor) -> str:
    """Return the attribute that cannot be pickled, for use in a message."""
    for name, value in getattr(processor, "__dict__", {}).items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            return f"attribute {name!r}: "
    return ""


def check_methods(
    processor: AnyProcessor, columns: Sequence[str], time_mode: str, *, has_initial: bool
) -> None:
    """Reject methods that cannot be called, and warn of methods that never output a row."""
    check_signatures(processor, time_mode, has_initial=has_initial)
    for message in missing_yields(processor, columns, time_mode, has_initial=has_initial):
        _log.warning("%s", message)


def check_signatures(processor: AnyProcessor, time_mode: str, *, has_initial: bool) -> None:
    """Reject methods whose parameters do not match the call, before any rows are processed."""
    face = face_of(processor)
    base = face.processor_type
    of_rows, of_timer, of_initial = face.methods
    called = {of_rows: True, of_timer: time_mode != "none", of_initial: has_initial}
    for name in (name for name, is_called in called.items() if is_called):
        expected = list(inspect.signature(getattr(base, name)).parameters)[1:]
        try:
            signature = inspect.signature(getattr(processor, name))
        except (AttributeError, TypeError, ValueError):  # none, or a callable without a signature
            continue
        try:
            signature.bind(*expected)
        except TypeError as error:
            raise UsageError(
                f"{type(processor).__name__}.{name} has the parameters {signature}, but is called with "
                f"({', '.join(expected)}): {error}"
            ) from error


def missing_yields(
    processor: AnyProcessor, columns: Sequence[str], time_mode: str, *, has_initial: bool
) -> list[str]:
    """Return what is certainly wrong with a processor's methods, given these output columns."""
    face = face_of(processor)
    of_rows, of_timer, of_initial = face.methods
    name = type(processor).__name__
    messages = []
    timers = None if time_mode == "none" else plain_function(processor, of_timer)
    is_inherited = timers is getattr(face.processor_type, of_timer)
    has_timers = time_mode != "none" and not is_inherited
    if (
        columns
        and _returns_only_none(plain_function(processor, of_rows))
        and (not has_timers or _returns_only_none(timers))
    ):
        methods = f"{of_rows} and {of_timer} have" if has_timers else f"{of_rows} has"
        names = ", ".join(columns[:_MOST_COLUMNS])
        more = ", ..." if len(columns) > _MOST_COLUMNS else ""
        messages.append(
            f"{name}.{methods} no `yield` and {'return' if has_timers else 'returns'} None, so no row "
            f"is ever output, though the output has the columns {names}{more}: write `yield` in front "
            "of each output row, or `return iter(())` if no row is intended"
        )
    initial = plain_function(processor, of_initial) if has_initial else None
    if initial is not None and initial.__code__.co_flags & _SUSPENDED:
        messages.append(
            f"{name}.{of_initial} has a `yield`, so its body never runs and the initial state is lost: "
            "remove the `yield`, because this method cannot output rows"
        )
    return messages


def plain_function(processor: AnyProcessor, name: str) -> FunctionType | None:
    """Return a method as a plain function, or None if it is not one."""
    method = getattr(processor, name, None)
    function = getattr(method, "__func__", method)
    return function if isinstance(function, FunctionType) else None


def _returns_only_none(function: FunctionType | None) -> bool:
    """Return whether a function can only ever return None."""
    if function is None or function.__code__.co_flags & _SUSPENDED:
        return False
    returns = _returns(function.__code__)
    return bool(returns) and all(returns)


def _returns(code: CodeType) -> list[bool]:
    """For each `return` in *code*, return whether it certainly returns None."""
    returns = []
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_CONST":
            returns.append(instruction.argval is None)
        elif instruction.opname.startswith("RETURN"):
            is_constant = before is not None and before.opname == "LOAD_CONST"
            # What jumps here has left another value.
            is_constant = is_constant and not instruction.is_jump_target
            returns.append(is_constant and before is not None and before.argval is None)
        before = instruction
    return returns
