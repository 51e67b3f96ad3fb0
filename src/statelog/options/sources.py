"""
Load options from all places in which they can be set.

Precedence, highest first: the code, Spark's configuration, the environment, a YAML file, the
defaults.  Every error names the place of its value.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from statelog import arguments
from statelog.errors import InvalidOptionsError
from statelog.options.declaration import Entry, Values, build, nearest, read
from statelog.options.kinds import MIB
from statelog.options.sections import (
    OPTIONS,
    SECTIONS,
    Options,
    find_option,
    variable_of,
)

_VARIABLE_PREFIX: Final = "STATELOG_"
_SPARK_PREFIX: Final = "spark.statelog."
_ROOT: Final = "statelog"


def load_options(
    settings: Mapping[str, object] | None = None,
    *,
    spark_conf: Mapping[str, str] | Iterable[tuple[str, str]] | None = None,
    environ: Mapping[str, str] | None = None,
    yaml_file: str | os.PathLike[str] | None = None,
    yaml_text: str | None = None,
    defaults: Mapping[str, object] | None = None,
) -> Options:
    """
    Load the options of all sections.

    Args:
        settings: Settings of the code, which have the highest precedence.  Keys in any spelling
            (`docs/reference/options.md`).
        spark_conf: Spark's configuration, such as `SparkConf.getAll()`; only keys that begin with
            `spark.statelog.` are read.
        environ: The environment; None for this process's, {} for none.  Variables are named
            `STATELOG_<SECTION>_<NAME>`.
        yaml_file: A YAML file, nested or flat, with or without a root `statelog`.
        yaml_text: The same as text; not together with a file.
        defaults: Settings of the lowest precedence, by key; None for the defaults of the table.

    Returns:
        Every section, complete.

    Raises:
        InvalidOptionsError: A key is unknown or is set twice in one place, a value is invalid or
            out of range, or values contradict each other; the message names the place.
        RequirementError: There is YAML, but PyYAML is not installed.
    """
    if settings is not None:
        form = "a mapping of keys to values"
        arguments.instance(settings, "settings", Mapping, form, error=InvalidOptionsError)
    if yaml_file is not None and yaml_text is not None:
        raise InvalidOptionsError("pass YAML as a file or as text, not both")
    places = (
        ((key, value, "the defaults") for key, value in (defaults or {}).items()),
        _from_yaml(yaml_file, yaml_text),
        from_environment(os.environ if environ is None else environ),
        _from_spark(spark_conf or {}),
        ((key, value, f"{key!r} in the code") for key, value in (settings or {}).items()),
    )
    values: Values = {}
    for place in places:
        values |= read(place, find_option)
    return options_from(values)


def options_from(values: Values) -> Options:
    """Return all sections, given the values from all places."""
    sections: dict[str, object] = {
        name.replace("-", "_"): build(kind, values, name) for kind, name in SECTIONS.items()
    }
    return build(Options, {}, **sections)


# --- places ---------------------------------------------------------------------------------------


def _from_spark(conf: Mapping[str, str] | Iterable[tuple[str, str]]) -> Iterator[Entry]:
    pairs = conf.items() if isinstance(conf, Mapping) else conf
    for key, value in pairs:
        if key.startswith(_SPARK_PREFIX):
            yield key.removeprefix(_SPARK_PREFIX), value, f"Spark's configuration {key!r}"


def from_environment(environ: Mapping[str, str]) -> Iterator[Entry]:
    """Yield the settings made in environment variables."""
    variables = {variable_of(declared.key): declared.key for declared in OPTIONS}
    endings = [name.removeprefix(_VARIABLE_PREFIX) for name in variables]
    sections = tuple(variable_of(f"{section}.") for section in SECTIONS.values())
    for name, value in environ.items():
        if not name.startswith(_VARIABLE_PREFIX):
            continue
        origin = f"environment variable {name}"
        if name in variables:
            yield variables[name], value, origin
            continue
        # Without the prefix, which makes all names similar: others may be the caller's own.
        near = nearest(name.removeprefix(_VARIABLE_PREFIX), endings)
        if near or name.startswith(sections):
            hint = (
                f"did you mean {_VARIABLE_PREFIX}{near}?"
                if near
                else "docs/reference/options.md lists all variables"
            )
            raise InvalidOptionsError(f"unknown {origin}; {hint}", key=name, origin=origin)


def _from_yaml(file: str | os.PathLike[str] | None, text: str | None) -> Iterator[Entry]:
    if file is None and text is None:
        return
    place = "the YAML text" if file is None else f"YAML file {os.fspath(file)}"
    if file is not None:
        try:
            with open(file, encoding="utf-8") as opened:
                text = opened.read()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOptionsError(f"{place} cannot be read: {error}", origin=place) from error
    document = _decode_yaml(text or "", place)
    if not isinstance(document, dict):
        raise InvalidOptionsError(
            f"{place} must be a mapping of keys to values, not {type(document).__name__}",
            origin=place,
        )
    if set(document) == {_ROOT} and isinstance(document[_ROOT], dict):
        document = document[_ROOT]
    for key, value in _flat(document):
        yield key.removeprefix(f"{_ROOT}."), value, f"{place}, key {key!r}"


def _decode_yaml(text: str, place: str) -> object:
    try:
        document: object = msgspec.yaml.decode(text)
    except ImportError as error:
        from statelog import extras  # imported here: PyYAML is seldom missing

        raise extras.missing_error(place, "cli", "yaml") from error
    except msgspec.DecodeError as error:
        raise InvalidOptionsError(f"{place} is not valid YAML: {error}", origin=place) from error
    return {} if document is None else document


def _flat(document: Mapping[object, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


# --- the defaults of tasks on Spark, and of commands that write changes ---------------------------
# They differ from Flink's where a task differs: it waits for its uploads before it answers, so a
# failed upload repeats the whole task, and its memory is bounded by `memoryBudget`.

MEMORY_BUDGET: Final = 512 * MIB
"""The default of memoryBudget."""

IN_FLIGHT_SHARE: Final = 16
PREEMPTIVE_SHARE: Final = 64
_BATCH_MAX_BYTES: Final = 10 * MIB


def task_defaults(memory_budget: int = MEMORY_BUDGET) -> dict[str, object]:
    """
    Return the default values for a task by key.

    Args:
        memory_budget: Bytes that state and rows take in the worker.
    """
    preemptive = memory_budget // PREEMPTIVE_SHARE
    return {
        # A change set in flight is in memory twice: as changes, and encoded.
        "changelog.upload.max-in-flight": memory_budget // IN_FLIGHT_SHARE,
        "changelog.preemptive-persist-threshold": preemptive,
        "changelog.batch.persist-size-threshold": min(preemptive, _BATCH_MAX_BYTES),
        # Flink's second is less than a large file takes on a slow connection.
        "changelog.upload.timeout": dt.timedelta(seconds=30),
        "changelog.upload.max-attempts": 5,
        # A small micro-batch is one object, whatever its tasks wrote.
        "stream.data-inline-threshold": MIB,
    }


def task_options() -> Options:
    """Return the options of a query that does not set any."""
    return load_options(task_defaults(), environ={})
