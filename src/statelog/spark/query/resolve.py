"""
Resolve the settings of a query from the session, the code and the writer.

Precedence, highest first: an option `statelog.<name>` of the writer, an argument in the code,
`spark.statelog.<name>` in the session's configuration; for the options of
docs/reference/options.md then the environment; then the defaults.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, TypeVar, cast

from statelog.errors import InvalidOptionsError, UsageError
from statelog.options import MEMORY_BUDGET, OPTIONS, task_defaults
from statelog.options.declaration import (
    Entry,
    ForeignKey,
    Option,
    Values,
    build,
    nearest,
    read,
    store_options,
)
from statelog.options.sections import find_option, variable_of
from statelog.options.sources import from_environment, options_from
from statelog.spark.jvm.tricks import is_switch
from statelog.spark.query.record import FIELDS, SECTION, Record
from statelog.spark.query.settings import (
    CONF_PREFIX,
    OPTION_PREFIX,
    SETTINGS,
    OperatorSettings,
    Place,
    QuerySettings,
)
from statelog.store.location_store import with_source

T = TypeVar("T")

_log = logging.getLogger("statelog.spark")

_OBSERVERS: Final = {"onprogress": "on_progress", "metrics": "metrics"}
"""Arguments that are objects, by the plain names of their settings."""
_BY_SESSION: Final = (Place.SESSION,)
_BY_CODE: Final = (Place.CODE, Place.OPERATOR)
_BY_WRITER: Final = (Place.WRITER,)
_REFUSAL: Final[Mapping[tuple[Place, ...], str]] = {
    _BY_SESSION: "it belongs to one query: set it in the code, or as an option of the writer",
    _BY_WRITER: "it belongs to the operator: pass it to transform_with_state",
}


def _plain(name: str) -> str:
    return name.replace(".", "").replace("-", "").replace("_", "").lower()


_DECLARED: Final[Mapping[str, Option]] = {**SETTINGS, **{field.key: field for field in FIELDS}}
_NAMES: Final = {_plain(name): name for name in _DECLARED}
"""The names of the settings, and of the fields of `Record`, by plain name."""
_OF_OPERATOR: Final = {
    plain for plain, name in _NAMES.items() if Place.OPERATOR in _DECLARED[name].only
}
"""The settings that each operator of a query has separately, by plain name."""


def _nearest(key: str) -> str:
    """Return the setting whose name is closest to *key*, or ""."""
    return _NAMES.get(nearest(_plain(key), _NAMES), "")


def unknown_arguments(arguments: Mapping[str, object]) -> dict[str, str]:
    """
    Return the arguments that are not settings, each with the closest setting or "".

    Options have a dot.
    """
    unknown = sorted(name for name in arguments if name not in SETTINGS and "." not in name)
    return {name: _nearest(name) for name in unknown}


def refuse_unknown_arguments(arguments: Mapping[str, object]) -> None:
    """Reject arguments of `transform_with_state` that are not settings."""
    unknown = unknown_arguments(arguments)
    if unknown:
        near = [name for name in unknown.values() if name]
        hint = f"its arguments are Spark's and {', '.join(OperatorSettings.__annotations__)}"
        if near:
            hint = f"did you mean {', '.join(map(repr, near))}?"
        raise UsageError(
            f"transform_with_state does not have the argument {', '.join(unknown)}; {hint}"
        )


def chained_arguments(
    before: Mapping[str, object], arguments: Mapping[str, object]
) -> dict[str, object]:
    """Return a query's settings after an operator has been added."""
    given_names = {_plain(name): name for name, value in arguments.items() if value is not None}
    chained = {n: value for n, value in before.items() if _plain(n) not in _OF_OPERATOR}
    for name, value in chained.items():
        asked_name = given_names.get(_plain(name), name)
        if value is not None and arguments.get(asked_name, value) != value:
            # A mapping or an object may hold credentials, so that only its name is shown.
            difference = "differs from the value of"
            if isinstance(value, str | int | float):
                difference = f"is {arguments[asked_name]!r} for this operator but {value!r} for"
            raise UsageError(
                f"{asked_name} {difference} an earlier operator; it applies to the whole query: set "
                "it only once"
            )
    return chained | {name: arguments[name] for name in given_names.values()}


def resolve_settings(
    conf: Mapping[str, str],
    arguments: Mapping[str, object],
    written: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> QuerySettings:
    """Resolve the settings of a query."""
    environ = os.environ if environ is None else environ
    _warn_of_variables(environ)
    session, session_store = store_options(
        (key.removeprefix(CONF_PREFIX), value, f"Spark's configuration {key!r}")
        for key, value in conf.items()
        if key.startswith(CONF_PREFIX) and not is_switch(key, value)
    )
    code, code_store = store_options(_of_code(arguments))
    writer, writer_store = store_options(
        (name, value, f"writer's option '{OPTION_PREFIX}{name}'")
        for name, value in (written or {}).items()
    )
    values = read(from_environment(environ), find_option)
    values |= read(session, partial(_find, _BY_SESSION))
    values |= read(code, partial(_find, _BY_CODE))
    values |= read(writer, partial(_find, _BY_WRITER))
    budget = _taken(dict(values), "memoryBudget", MEMORY_BUDGET)
    defaults = ((key, value, "the defaults") for key, value in task_defaults(budget).items())
    values = read(defaults, find_option) | values
    store: Mapping[str, object] = _taken(values, "storageOptions", {})
    store = with_source({**session_store, **store, **code_store, **writer_store}, environ)
    return build(
        QuerySettings,
        values,
        options=options_from(values),
        record=build(Record, values, SECTION),
        storage_options=store,
    )


def _of_code(arguments: Mapping[str, object]) -> Iterator[Entry]:
    """Yield the settings made in code; a `Record` sets all of its fields."""
    for name, value in arguments.items():
        origin = f"argument {name!r}"
        if isinstance(value, Record) and _plain(name) == SECTION:
            yield from ((field.key, getattr(value, field.field), origin) for field in FIELDS)
        elif value is not None:
            yield name, value, origin


def _taken(values: Values, key: str, default: T) -> T:
    """Remove an option that needs conversion from the settings, and return it."""
    return cast("T", values.pop(key)[1]) if key in values else default


def _find(places: tuple[Place, ...], key: str) -> Option | ForeignKey:
    """Return the setting or option that *key* refers to in one origin of settings."""
    if (name := _NAMES.get(_plain(key))) is None:
        return _find_option(key)
    setting = _DECLARED[name]
    if setting.only and not set(setting.only).intersection(places):
        raise InvalidOptionsError(
            f"{name} has no effect there; {setting.advice or _REFUSAL[places]}"
        )
    return setting


def _find_option(key: str) -> Option | ForeignKey:
    if (name := _OBSERVERS.get(_plain(key))) is not None:
        raise InvalidOptionsError(
            f"{name} is not a setting: pass it to transform_with_state as an argument"
        )
    try:
        declared = find_option(key)
    except InvalidOptionsError:
        is_setting = "." not in key or key.lower().startswith(f"{SECTION}.")
        near = _nearest(key) if is_setting else ""
        if not near:
            raise
        raise InvalidOptionsError(f"unknown setting {key!r}; did you mean {near!r}?") from None
    if isinstance(declared, Option):
        reason = declared.not_in_query
    else:
        reason = declared.reason if declared.allowed is None else ""
    if reason:
        raise InvalidOptionsError(f"{key} has no effect in a query; remove it: {reason}")
    return declared


def _warn_of_variables(environ: Mapping[str, str]) -> None:
    """
    Warn about environment variables that do not affect a query.

    They are not rejected: a process may have them for its own changelogs.
    """
    for declared in OPTIONS:
        variable = variable_of(declared.key)
        if declared.not_in_query and variable in environ:
            _log.warning(
                "environment variable %s has no effect in a query: %s",
                variable,
                declared.not_in_query,
            )
