"""
How an option is declared: `option` in a field of an option class (`sections.py`).

A declaration has everything that is known of an option: name, kind, default, least value, Flink's
keys, meaning.  The table of keys, the parsers, the environment variables, the docstrings and
docs/reference/options.md are made from it.
Source of Flink's keys: Flink 2.3.0, FsStateChangelogOptions, StateChangelogOptions,
CheckpointingOptions.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import difflib
import enum
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from statelog import arguments
from statelog.errors import InvalidOptionsError
from statelog.options import units

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

DFS: Final = ("state.changelog.dstl.dfs.", "state.backend.changelog.dstl.dfs.", "dstl.dfs.")
_CHANGELOG: Final = ("state.changelog.", "state.backend.changelog.")
EXECUTION: Final = "execution.checkpointing."

T = TypeVar("T")
OptionsT = TypeVar("OptionsT", bound="DataclassInstance")

OptionValue: TypeAlias = bool | int | float | str | dt.timedelta | tuple[str, ...]
"""What an option can be set to."""


class OptionKind(enum.Enum):
    """The kind of a value, and how it is written."""

    SIZE = "size"
    COUNT = "count"
    RATIO = "number"
    DURATION = "duration"
    SWITCH = "true or false"
    TEXT = "text"
    PATHS = "paths"

    def parse(self, value: object, key: str) -> OptionValue:
        """
        Return *value* in the type of this kind.

        Raises:
            InvalidOptionsError: It is not of this kind.
        """
        return _PARSERS[self](value, key=key)


_PARSERS: Final[Mapping[OptionKind, Callable[..., OptionValue]]] = {
    OptionKind.SIZE: units.parse_size,
    OptionKind.COUNT: units.parse_count,
    OptionKind.RATIO: units.parse_ratio,
    OptionKind.DURATION: units.parse_duration,
    OptionKind.SWITCH: units.parse_bool,
    OptionKind.TEXT: units.parse_text,
    OptionKind.PATHS: units.parse_paths,
}


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """
    What is declared of one option.

    Args:
        section: The section it belongs to.
        field: Its name in the option class of the section.
        name: Its name in a key, after the section.
        kind: The kind of its value.
        flink_keys: Flink's keys, the present one first.
        description: What it does, in a sentence.
        not_in_query: Why a query on Spark rejects it; "" where it takes effect there.
        least: Its least value, where it is a number.
        most: Its greatest value, where it has a bound.
        choices: All its values, where it is one of a few words; letter case is ignored.
        advice: What to do instead of a value out of the range.
    """

    section: str
    field: str
    name: str
    kind: OptionKind
    flink_keys: tuple[str, ...]
    description: str
    not_in_query: str = ""
    least: int = 0
    most: int | None = None
    choices: tuple[str, ...] = ()
    advice: str = ""

    @property
    def text(self) -> str:
        """What the option does, with its range."""
        least = f"at least {self.least:,}" if self.least else ""
        size = self.kind is OptionKind.SIZE
        most = (
            ""
            if self.most is None
            else units.describe_size(self.most)
            if size
            else f"{self.most:,}"
        )
        bounds = " and ".join(filter(None, (least, most and f"at most {most}")))
        return f"{self.description} {bounds.capitalize()}." if bounds else self.description

    @property
    def key(self) -> str:
        """Our key."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return variable_of(self.key)


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """
    A key of Flink's without an option here.

    Args:
        keys: Its spellings.
        kind: The kind of its value.
        allowed: The one value that statelog supports; None to accept any, without effect.
        reason: Why the key has no option.
    """

    keys: tuple[str, ...]
    kind: OptionKind
    allowed: OptionValue | None
    reason: str


def option(
    default: T,
    name: str,
    kind: OptionKind,
    description: str,
    *,
    flink_keys: tuple[str, ...] = (),
    not_in_query: str = "",
    least: int = 0,
    most: int | None = None,
    choices: tuple[str, ...] = (),
    advice: str = "",
) -> T:
    """Return a dataclass field that declares an option; see `OptionSpec` for the arguments."""
    declared = partial(
        OptionSpec,
        name=name,
        kind=kind,
        flink_keys=flink_keys,
        description=description,
        not_in_query=not_in_query,
        least=least,
        most=most,
        choices=choices,
        advice=advice,
    )
    return dataclasses.field(default=default, metadata={"option": declared})


def declared_options(section: str, kind: type[DataclassInstance]) -> Iterator[OptionSpec]:
    """Yield the options that the fields of an option class declare."""
    for each in dataclasses.fields(kind):
        yield each.metadata["option"](section=section, field=each.name)


def documented(kind: type[OptionsT]) -> type[OptionsT]:
    """Put the descriptions of the options of a class into its docstring."""
    describe_arguments(kind, {spec.field: spec.text for spec in declared_options("", kind)})
    return kind


def describe_arguments(kind: type, texts: Mapping[str, str]) -> None:
    """Put what each argument is into the docstring of a class, before `Raises`."""
    if kind.__doc__ is None:  # under python -OO
        return
    lines = ["Args:"]
    for name, text in texts.items():
        entry = textwrap.wrap(f"{name}: {text}", 84, break_on_hyphens=False)
        lines += ["        " + entry[0], *("            " + line for line in entry[1:])]
    arguments_text = "\n".join(lines)
    kind.__doc__ = kind.__doc__.replace("Raises:", f"{arguments_text}\n\n    Raises:")


# --- checks -----------------------------------------------------------------------------------

_CHECKS: Final[Mapping[str, Callable[..., object]]] = {
    "int": arguments.whole_number,
    "float": arguments.number,
    "bool": arguments.switch,
    "bool | None": arguments.switch,
    "str": arguments.text,
    "str | None": arguments.path,
    "dt.timedelta": arguments.duration,
    "tuple[str, ...]": arguments.paths,
}
"""By declared type: the check of a field of an option class."""


def check_fields(options: DataclassInstance) -> None:
    """
    Convert each field of an option class to its plain type, and check its range.

    Raises:
        InvalidOptionsError: A field is of another type or out of its range.
    """
    for each in dataclasses.fields(options):
        value = getattr(options, each.name)
        if value is None and str(each.type).endswith("| None"):
            continue
        checked = _CHECKS[str(each.type)](value, each.name, error=InvalidOptionsError)
        object.__setattr__(options, each.name, checked)
    for spec in declared_options("", type(options)):
        if spec.choices:
            chosen = _choose(spec, getattr(options, spec.field))
            object.__setattr__(options, spec.field, chosen)
        else:
            _check_range(spec, getattr(options, spec.field))


def _choose(spec: OptionSpec, value: str) -> str:
    if value.lower() in spec.choices:
        return value.lower()
    raise InvalidOptionsError(
        f"{spec.field} is {value!r}; it must be one of {', '.join(spec.choices)}",
        fields=(spec.field,),
    )


def _check_range(spec: OptionSpec, value: object) -> None:
    bound = ""
    if isinstance(value, dt.timedelta):
        bound = "not be negative" if value < dt.timedelta(0) else ""
    elif isinstance(value, int):
        if value < min(spec.least, 0):
            bound = "not be negative"
        elif value < spec.least:
            bound = f"be at least {spec.least}"
        elif spec.most is not None and value > spec.most:
            bound = f"be at most {spec.most}"
    if bound:
        advice = f". {spec.advice}" if spec.advice else ""
        raise InvalidOptionsError(
            f"{spec.field} is {value}; it must {bound}{advice}", fields=(spec.field,)
        )


# --- keys -------------------------------------------------------------------------------------

FOREIGN: Final = (
    ForeignKey(
        tuple(f"{prefix}enabled" for prefix in _CHANGELOG),
        OptionKind.SWITCH,
        True,
        "statelog is the changelog",
    ),
    ForeignKey(
        tuple(f"{prefix}storage" for prefix in _CHANGELOG),
        OptionKind.TEXT,
        "filesystem",
        "for tests in memory, open a location such as memory://test",
    ),
    ForeignKey(
        tuple(f"{prefix}periodic-materialize.enabled" for prefix in _CHANGELOG),
        OptionKind.SWITCH,
        True,
        "without snapshots the log grows without bound; raise the bounds in the section `snapshot` "
        "instead",
    ),
    ForeignKey(
        tuple(f"{prefix}periodic-materialize.interval" for prefix in _CHANGELOG),
        OptionKind.DURATION,
        None,
        "snapshots are written when the log has grown, not by the clock",
    ),
    ForeignKey(
        tuple(f"{prefix}max-failures-allowed" for prefix in _CHANGELOG),
        OptionKind.COUNT,
        None,
        "a failed snapshot fails no micro-batch and is tried again later",
    ),
    ForeignKey(
        (
            *(f"{prefix}upload.buffer-size" for prefix in DFS),
            "changelog.upload.buffer-size",
            "upload.buffer-size",
        ),
        OptionKind.SIZE,
        None,
        "a file is put whole, so that no stream has to be buffered",
    ),
    ForeignKey(
        (f"{EXECUTION}max-concurrent-checkpoints",),
        OptionKind.COUNT,
        1,
        "micro-batches commit one after another",
    ),
    ForeignKey(
        (f"{EXECUTION}file-merging.enabled",),
        OptionKind.SWITCH,
        None,
        "tasks of a batch always share one file",
    ),
)
"""Flink's keys that are accepted without being options."""

_FOREIGN_KEYS: Final = {key: foreign for foreign in FOREIGN for key in foreign.keys}


def check_foreign(foreign: ForeignKey, key: str, value: object) -> None:
    """
    Check a setting of Flink's that has no option here.

    Raises:
        InvalidOptionsError: statelog does not support its value.
    """
    parsed = foreign.kind.parse(value, key)
    if foreign.allowed is not None and parsed != foreign.allowed:
        raise InvalidOptionsError(
            f"option {key!r} is {value!r}; here it can only be {foreign.allowed!r}: "
            f"{foreign.reason}",
            key=key,
        )


def find_declared(
    key: str, specs: Sequence[OptionSpec], others: Sequence[OptionSpec] = ()
) -> OptionSpec | ForeignKey:
    """
    Return the option of *specs* that *key* names, in any of its spellings.

    Args:
        key: Our key, Flink's, or (where it is unambiguous) a name or field without the section.
        specs: The options to search.
        others: Options of all sections, for the message.

    Raises:
        InvalidOptionsError: There is no such key; the message names the nearest one.
    """
    plain = _plain(key)
    for spec in specs:
        prefixes = DFS if spec.section == "changelog" else ()
        if key in (spec.key, *spec.flink_keys, *(prefix + spec.name for prefix in prefixes)):
            return spec
    if key in _FOREIGN_KEYS:
        return _FOREIGN_KEYS[key]
    by_name: dict[str, OptionSpec] = {}
    for spec in specs:
        for name in (spec.key, *spec.flink_keys, spec.name, spec.field):
            by_name.setdefault(_plain(name), spec)
            by_name.setdefault(_plain(name).removesuffix("_bytes"), spec)
    for prefix in ("", *map(_plain, DFS)):
        if plain.removeprefix(prefix) in by_name:
            return by_name[plain.removeprefix(prefix)]
    for spec in others:
        if key in (spec.key, *spec.flink_keys):
            raise InvalidOptionsError(
                f"option {key!r} is in the section {spec.section}, not in this one; use `load_options`, "
                "which takes the keys of all sections",
                key=key,
            )
    near = difflib.get_close_matches(plain, by_name, n=1)
    hint = (
        f"; did you mean {by_name[near[0]].key!r}?"
        if near
        else "; docs/reference/options.md lists all keys"
    )
    raise InvalidOptionsError(f"unknown option {key!r}{hint}", key=key)


def variable_of(key: str) -> str:
    """Return the environment variable of a key of ours."""
    return "STATELOG_" + _plain(key).upper()


def _plain(key: str) -> str:
    return key.strip().lower().replace(".", "_").replace("-", "_")
