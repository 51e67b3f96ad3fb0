"""
Find the processor that a replay runs, by the name that the user specifies.

A recording has the name of its processor too.  That name is stored data: it is shown to the user,
and never imported.  The type of what the user names is checked before it is called.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import typing
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NoReturn

from statelog.errors import UsageError
from statelog.extensions.recordings.format import TaskRecording
from statelog.spark.rows.spark_versions import StatefulProcessor
from statelog.store.location import local_path, normalize_url


def find_processor(name: str, *, location: str = "") -> StatefulProcessor:
    """
    Return the processor with the name `module:Class` or `file.py:Class`.

    An instance will do too, and so will a function without arguments whose return annotation is a
    processor.  Modules are looked up as in any program, and at last in the working directory.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise UsageError(
            f"name the processor as module:Class or file.py:Class, such as "
            f"jobs.fraud:FraudRule; got {name!r}"
        )
    target: object = _file(place) if place.endswith(".py") else _module(place, location)
    for part in attribute.split("."):
        target = getattr(target, part, None)
    if target is None:
        raise UsageError(f"{place} does not define {attribute!r}")
    return _made(name, target)


def recorded_name(task: TaskRecording) -> str:
    """Describe the processor of a recording, for a message."""
    source = f", of the file {task.source!r:.200}" if task.source else ""
    return f"{task.processor!r:.200}{source}"


def refuse_no_processor(task: TaskRecording) -> NoReturn:
    """Raise an error that asks for the processor of a replay."""
    raise UsageError(
        "a replay needs the processor to run, as module:Class or file.py:Class (--processor). The "
        f"recording names {recorded_name(task)}; statelog never imports a recorded name, so pass it "
        "only if you trust that code"
    )


def _made(name: str, target: object) -> StatefulProcessor:
    """Return the processor that *target* is or creates, without calling anything else."""
    if isinstance(target, StatefulProcessor):
        return target
    if isinstance(target, type):
        if not issubclass(target, StatefulProcessor):
            raise UsageError(f"{name} is the class {target.__name__}, not a StatefulProcessor")
        make: typing.Callable[[], object] = target
    elif isinstance(target, FunctionType):
        _check_returned_type(name, target)
        make = target
    else:
        raise UsageError(f"{name} is {type(target).__name__}, not a StatefulProcessor")
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise UsageError(
            f"{name} cannot be called without arguments: {error}. Name a function without "
            "arguments that creates the processor as the job does"
        ) from error
    processor = make()
    if not isinstance(processor, StatefulProcessor):
        raise UsageError(f"{name}() returns {type(processor).__name__}, not a StatefulProcessor")
    return processor


def _check_returned_type(name: str, function: FunctionType) -> None:
    try:
        returned = typing.get_type_hints(function).get("return")
    except Exception as error:  # an annotation may be any expression
        raise UsageError(f"the annotations of {name} cannot be evaluated: {error!r}") from error
    if not (isinstance(returned, type) and issubclass(returned, StatefulProcessor)):
        raise UsageError(
            f"{name} is a function without a return annotation, so statelog does not call it; annotate "
            f"it: def {function.__name__}() -> StatefulProcessor"
        )


def _module(place: str, location: str) -> ModuleType:
    here = Path.cwd()
    path = local_path(normalize_url(location)) if location else None
    # At the end: a file of the working directory never replaces an installed module.
    if str(here) not in sys.path and not (path and here.is_relative_to(Path(path).resolve())):
        sys.path.append(str(here))
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise UsageError(f"the module {place!r} cannot be imported: {error}") from error


def _file(place: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise UsageError(f"the file {place} does not exist")
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if str(path.parent) not in sys.path:  # its own imports
        sys.path.insert(0, str(path.parent))
    name = path.stem if loaded is None else f"replayed_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{place} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that the processor can be pickled
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{place} cannot be imported: {error!r}") from error
    return module
