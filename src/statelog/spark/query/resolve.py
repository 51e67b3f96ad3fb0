"""
Resolve the settings of a query from session, code and writer.

Precedence, highest first: an option `statelog.<name>` of the writer, an argument in the code,
`spark.statelog.<name>` in the session's configuration; for the options of
docs/reference/options.md then the environment; then the defaults.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from statelog.errors import InvalidOptionsError, UsageError
from statelog.options import OPTIONS, load_options, task_defaults
from statelog.options.declaration import ForeignKey
from statelog.options.sections import find_option
from statelog.spark.jvm.tricks import is_switch
from statelog.spark.query.setting import Place, Setting, storage_option_of
from statelog.spark.query.settings import (
    CONF_PREFIX,
    OPTION_PREFIX,
    SETTINGS,
    QuerySettings,
)
from statelog.state.backend import DEFAULT_BUDGET
from statelog.store.encryption import with_source

_log = logging.getLogger("statelog.spark")

_OF_ONE_OPERATOR: Final = frozenset(["operatorid", "inputcolumns"])
"""Settings that each operator of a query has for itself, by their plain names."""
_OBSERVERS: Final = {"onprogress": "onProgress", "metrics": "metrics"}
"""Arguments that are objects, by the plain names under which they are given as settings."""
_REFUSAL: Final = {
    Place.SESSION: "it belongs to one query: give it in the code, or as an option of the writer",
    Place.WRITER: "it belongs to the operator: give it to transform_with_state",
}


def _plain(name: str) -> str:
    return name.replace(".", "").replace("-", "").replace("_", "").lower()


_BY_NAME: Final = {_plain(setting.name): at for at, setting in SETTINGS.items()}
"""Plain name to the field of `QuerySettings`."""


@dataclass(slots=True)
class _Layer:
    """The settings, store options and options of one place."""

    settings: dict[str, Any] = field(default_factory=dict)
    store: dict[str, object] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)


def refuse_unknown_arguments(arguments: Mapping[str, object]) -> None:
    """
    Reject arguments of `transform_with_state` that are not settings.

    Raises:
        UsageError: An argument is unknown; the message has the nearest name, and all names.
    """
    names = [setting.name for setting in SETTINGS.values()]
    unknown = set(arguments).difference(names)
    if unknown:
        nearest = [name for name in map(_nearest, sorted(unknown)) if name]
        hint = f"; did you mean {', '.join(map(repr, nearest))}? It" if nearest else "; it"
        raise UsageError(
            f"transform_with_state has no argument {', '.join(sorted(unknown))}{hint} takes "
            f"Spark's and {', '.join(names)}"
        )


def _nearest(key: str) -> str:
    """Return the setting whose name is nearest to *key*, or ""."""
    similar = difflib.get_close_matches(_plain(key), _BY_NAME, n=1, cutoff=0.7)
    return SETTINGS[_BY_NAME[similar[0]]].name if similar else ""


def chained_arguments(
    before: Mapping[str, object], arguments: Mapping[str, object]
) -> dict[str, object]:
    """
    Return the settings of a query with another operator.

    Args:
        before: Those given with the operators before it.
        arguments: Those given with this one; None counts as not given.

    Raises:
        UsageError: A setting is given twice, with different values: it applies to the whole query.
    """
    given_names = {_plain(name): name for name, value in arguments.items() if value is not None}
    chained = {n: value for n, value in before.items() if _plain(n) not in _OF_ONE_OPERATOR}
    for name, value in chained.items():
        given = given_names.get(_plain(name), name)
        if value is not None and arguments.get(given, value) != value:
            # A mapping or an object may hold credentials, so that only its name is shown.
            difference = "differs here from"
            if isinstance(value, str | int | float):
                difference = f"is {arguments[given]!r} here and {value!r} at"
            raise UsageError(
                f"{given} {difference} an operator before this one; it applies to the whole query: give "
                "it once"
            )
    return chained | {name: arguments[name] for name in given_names.values()}


def resolve_settings(
    conf: Mapping[str, str],
    arguments: Mapping[str, object],
    written: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> QuerySettings:
    """
    Resolve the settings of a query.

    Args:
        conf: The session's configuration; only keys that begin with `spark.statelog.` are read.
        arguments: Settings given in the code; None counts as not given.
        written: Options of the writer, without `statelog.`; None before there is a writer.
        environ: Environment variables; None: this process's.

    Raises:
        InvalidOptionsError: A key is unknown or is set twice in one place, a value cannot be
            parsed or is out of range, or values contradict each other; the message names the
            place.
    """
    session = _read(
        Place.SESSION,
        (
            (key.removeprefix(CONF_PREFIX), value, f"Spark's configuration {key!r}")
            for key, value in conf.items()
            if key.startswith(CONF_PREFIX) and not is_switch(key, value)
        ),
    )
    code = _read(
        Place.CODE,
        (
            (name, value, f"argument {name!r}")
            for name, value in arguments.items()
            if value is not None
        ),
    )
    writer = _read(
        Place.WRITER,
        (
            (name, value, f"writer's option '{OPTION_PREFIX}{name}'")
            for name, value in (written or {}).items()
        ),
    )
    budget = DEFAULT_BUDGET
    for layer in (session, code, writer):
        budget = layer.settings.get("memory_budget", budget)
    environ = os.environ if environ is None else environ
    _warn_of_variables(environ)
    options = load_options(
        code.options | writer.options,
        spark_conf={CONF_PREFIX + key: str(value) for key, value in session.options.items()},
        environ=environ,
        defaults=task_defaults(budget),
    )
    base = session.settings.pop("state_location", None)
    given = code.settings.pop("storage_options", {})
    values: dict[str, Any] = {
        "changelog": options.changelog,
        "checkpoints": options.checkpoint,
        "snapshot_policy": options.snapshot,
        **session.settings,
        **code.settings,
        **writer.settings,
    }
    return QuerySettings(
        base_location=base,
        storage_options=with_source(
            {**session.store, **given, **code.store, **writer.store}, environ
        ),
        **values,
    )


def _read(place: Place, entries: Iterable[tuple[str, object, str]]) -> _Layer:
    """Parse the settings of one place, and reject one that is given twice."""
    layer = _Layer()
    for key, value, origin in entries:
        if (option := storage_option_of(key)) is not None:
            layer.store[option] = value
            continue
        into, at, name = layer.options, "", ""
        declared = _BY_NAME.get(_plain(key))
        if declared is None:
            at = name = _option(key, origin)
        else:
            setting = SETTINGS[declared]
            _check_place(setting, key, origin, place)
            if setting.option:
                at = name = setting.option
            else:
                into, at, name = layer.settings, declared, setting.name
                value = _parsed(setting, value, origin)
        if at in into:
            raise InvalidOptionsError(
                f"{origin}: {name} is set a second time; remove one of the two", key=key
            )
        into[at] = value
    return layer


def _check_place(setting: Setting, key: str, origin: str, place: Place) -> None:
    if place not in setting.places:
        raise InvalidOptionsError(f"{origin} has no effect there; {_REFUSAL[place]}", key=key)


def _parsed(setting: Setting, value: object, origin: str) -> object:
    try:
        return setting.parse(value, key=setting.name)
    except InvalidOptionsError as error:
        raise InvalidOptionsError(f"{origin}: {error}", **error.facts) from None


def _option(key: str, origin: str) -> str:
    """
    Return the key of an option of docs/reference/options.md.

    A key of Flink's is unchanged.

    Raises:
        InvalidOptionsError: There is no such option, or it has no effect in a query.
    """
    try:
        spec = find_option(key)
    except InvalidOptionsError as error:
        nearest = "" if "." in key else _nearest(key)  # an option has a dot
        hint = f"unknown setting {key!r}; did you mean {nearest!r}?" if nearest else error
        if (name := _OBSERVERS.get(_plain(key))) is not None:
            hint = f"{name} is not a setting: give it to transform_with_state as an argument"
        raise InvalidOptionsError(f"{origin}: {hint}", key=key) from None
    if isinstance(spec, ForeignKey):
        if spec.allowed is not None:  # `load_options` compares the value
            return key
        reason = spec.reason
    elif not spec.not_in_query:
        return spec.key
    else:
        reason = spec.not_in_query
    raise InvalidOptionsError(f"{origin} has no effect in a query, remove it: {reason}", key=key)


def _warn_of_variables(environ: Mapping[str, str]) -> None:
    """
    Warn of environment variables without effect in a query.

    They are not rejected: a process may have them for its own changelogs.
    """
    for spec in OPTIONS:
        if spec.not_in_query and spec.variable in environ:
            _log.warning(
                "environment variable %s has no effect in a query: %s",
                spec.variable,
                spec.not_in_query,
            )
