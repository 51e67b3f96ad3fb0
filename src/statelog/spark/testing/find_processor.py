"""Find the processor that a replay runs, by the name that a user gives or a recording has."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statelog.errors import UsageError
from statelog.state.recordings.format import TaskRecording


@dataclass(frozen=True, slots=True)
class FoundProcessor:
    """
    A processor, and how code imports it.

    Args:
        processor: The instance.
        module: The module of *name*; *folder* is where it is, if it was given as a file.
        name: The class or function that makes it, or the instance.
        is_called: Whether *name* is called to make it.
    """

    processor: StatefulProcessor
    module: str
    name: str
    is_called: bool
    folder: str = ""


def find_processor(name: str) -> FoundProcessor:
    """
    Return the processor that `module:Class` or `file.py:Class` names.

    A function without arguments that returns a processor, or an instance, will do too.  The working
    directory is looked in, as by `python -m`.

    Raises:
        UsageError: There is none, or it cannot be imported or made.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise UsageError(
            f"a processor is named module:Class or file.py:Class, not {name!r}, such as "
            "jobs.fraud:FraudRule"
        )
    folder = ""
    if place.endswith(".py"):
        folder = str(Path(place).resolve().parent)
    module = _file(place) if folder else _module(place)
    found: object = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise UsageError(f"{place} has no {attribute!r}")
    is_called = isinstance(found, type) or not isinstance(found, StatefulProcessor)
    return FoundProcessor(_made(name, found), module.__name__, attribute, is_called, folder)


def _made(name: str, found: object) -> StatefulProcessor:
    if isinstance(found, StatefulProcessor):
        return found
    if not callable(found):
        raise UsageError(f"{name} is {type(found).__name__}, not a StatefulProcessor")
    try:
        made = found()
    except TypeError as error:
        raise UsageError(
            f"{name} cannot be called without arguments: {error}. Name a function that returns the "
            "processor with the arguments of the job"
        ) from error
    if not isinstance(made, StatefulProcessor):
        raise UsageError(f"{name}() returns {type(made).__name__}, not a StatefulProcessor")
    return made


def _module(place: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise UsageError(f"the module {place!r} cannot be imported: {error}") from error


def _file(place: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise UsageError(f"there is no file {place}")
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if str(path.parent) not in sys.path:  # its own imports
        sys.path.insert(0, str(path.parent))
    name = path.stem if known is None else f"replayed_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that the processor can be pickled
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{place} cannot be imported: {error!r}") from error
    return module


def recorded_processor(task: TaskRecording) -> FoundProcessor:
    """
    Return the processor of today that has the name of the recorded one.

    A location stores no processor, only the name of its class.

    Raises:
        UsageError: It cannot be found by its name; the error says to give one.
    """
    module, _, name = task.processor.partition(":")
    advice = (
        f"the recording was made by the processor {task.processor}; name the one to replay with: "
        "--processor module:Class (or file.py:Class)"
    )
    if "<locals>" in name:
        raise UsageError(advice)
    place = module
    if module == "__main__" or not _is_importable(module):
        if not Path(task.source).is_file():
            raise UsageError(advice)
        place = task.source
    try:
        return find_processor(f"{place}:{name}")
    except UsageError as error:
        raise UsageError(f"{error}. In full: {advice}") from error


def _is_importable(module: str) -> bool:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
