"""
Declare, name, parse and validate options.

A field of a dataclass declares an option by `option`: name, kind, default, range, and where it may
be set.  Its text is the entry of the field in `Args:` of the class.  The names, the parsers, the
errors and the pages of docs/reference are made from the declarations.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from statelog.errors import InvalidOptionsError
from statelog.options.kinds import SIZE, Kind, describe_size

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

STORAGE_OPTIONS: Final = "storageOptions."
"""The prefix of options of the store's client in configurations, readers and writers."""

D = TypeVar("D")
T = TypeVar("T")
OptionsT = TypeVar("OptionsT", bound="DataclassInstance")

Entry: TypeAlias = tuple[str, object, str]
"""A key, its value, and where it is set."""
Values: TypeAlias = dict[str, tuple["Option", object, str]]
"""By key: the option, its parsed value, and where it is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """
    The declaration of one option.

    Args:
        name: Its name as users type it, after the section.
        kind: The kind of its value.
        default: Its value where it is not set; a function returns it.
        section: The section it belongs to; "" for none.
        field: The field that declares it.
        also: Its other names.  One that ends with "." is put before the name.
        only: The places or views that take it; () for all.
        values: What its values are, for documentation; "" for the name of the kind with the range.
        least: Its least value, where it is a number.
        most: Its greatest value, where it is a number with a bound.
        advice: What to do instead of a value out of the range, as a sentence.
        setting: The setting of a query that sets it; "" for none.
        not_in_query: Why a query on Spark rejects it; "" where it takes effect there.
    """

    name: str
    kind: Kind[object]
    default: object
    section: str = ""
    field: str = ""
    also: tuple[str, ...] = ()
    only: tuple[object, ...] = ()
    values: str = ""
    least: int = 0
    most: int | None = None
    advice: str = ""
    setting: str = ""
    not_in_query: str = ""

    @property
    def key(self) -> str:
        """The name of the option, including its section."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def other_keys(self) -> tuple[str, ...]:
        """The other names of the option."""
        return tuple(f"{also}{self.name}" if also.endswith(".") else also for also in self.also)

    @property
    def bounds(self) -> str:
        """The range of the option, as text that follows the kind of value."""
        bounds = {"at least": self.least, "at most": self.most}
        texts = [
            f"{word} {describe_size(bound) if self.kind is SIZE else f'{bound:,}'}"
            for word, bound in bounds.items()
            if bound
        ]
        return f", {' and '.join(texts)}" if texts else ""

    @property
    def described_values(self) -> str:
        """The kind of values that the option takes, for documentation."""
        return self.values or f"{self.kind.name}{self.bounds}"

    def parse(self, value: object, name: str = "") -> object:
        """Parse *value* to the type of the option."""
        name = name or self.key
        parsed = self.kind.parse(value, name, self.bounds)
        if not self._allows(parsed):
            raise self.kind.refused(value, name, self.bounds or ", at least 0", self.advice)
        return parsed

    def _allows(self, value: object) -> bool:
        if isinstance(value, dt.timedelta):
            return value >= dt.timedelta(0)
        if isinstance(value, bool) or not isinstance(value, int):
            return True
        return self.least <= value and (self.most is None or value <= self.most)


def option(
    default: D | Callable[[], D],
    name: str,
    kind: Kind[T],
    *,
    compare: bool = True,
    **declared: Any,
) -> D | T:
    """Return a dataclass field that declares an option; arguments as for `Option`."""
    metadata = {"option": Option(name=name, kind=kind, default=default, **declared)}
    if callable(default):
        return dataclasses.field(default_factory=default, compare=compare, metadata=metadata)
    return dataclasses.field(default=default, compare=compare, metadata=metadata)


@functools.cache
def options_of(kind: type[DataclassInstance], section: str = "") -> tuple[Option, ...]:
    """Return the options declared by the fields of a dataclass."""
    return tuple(
        dataclasses.replace(option.metadata["option"], section=section, field=option.name)
        for option in dataclasses.fields(kind)
        if option.metadata
    )


def describe_values(kind: type, options: Mapping[str, Option]) -> None:
    """Add the kind of value of each option to its description in a class's docstring."""
    for name, declared in options.items():
        if kind.__doc__ is not None:  # it is None under python -OO
            text = f"\n        {name}: "
            described = f"{text}({declared.described_values}) "
            kind.__doc__ = kind.__doc__.replace(text, described, 1)


def check_fields(options: DataclassInstance) -> None:
    """Check the fields of an option class, which accepts typed values but not text."""
    for declared in options_of(type(options)):
        field = declared.field
        value = getattr(options, declared.field)
        if value is not None or declared.default is not None:
            checked = declared.kind.check(value, field, error=InvalidOptionsError)
            object.__setattr__(options, field, declared.parse(checked, field))


# --- names ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Names:
    """
    Maps every name of each option to the option.

    Args:
        plain: Returns a name without what does not count in it, such as letter case.
        by_name: The options by plain name.
        advice: What an error says of all names.
    """

    plain: Callable[[str], str]
    by_name: Mapping[str, Option]
    advice: str

    def find(self, key: str) -> Option:
        """Return the option that has the name *key*."""
        if (declared := self.by_name.get(self.plain(key))) is not None:
            return declared
        near = nearest(self.plain(key), self.by_name)
        hint = f"did you mean {self.by_name[near].key!r}?" if near else self.advice
        raise InvalidOptionsError(f"unknown option {key!r}; {hint}", key=key)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the entry of *names* that *name* is probably meant to be, or ""."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=0.7)), "")


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """
    A key of Flink for which statelog does not have an option.

    Args:
        keys: Its spellings.
        kind: The kind of its value.
        allowed: The one value that statelog supports; None to accept any, without effect.
        reason: Why the key has no option.
    """

    keys: tuple[str, ...]
    kind: Kind[object]
    allowed: object
    reason: str

    def parse(self, value: object) -> object:
        """Return the value unchanged."""
        parsed = self.kind.parse(value, self.keys[0])
        if self.allowed not in (None, parsed):
            raise InvalidOptionsError(
                f"{self.keys[0]} can only be {self.allowed!r}, not {value!r:.100}: {self.reason}"
            )
        return parsed


# --- places ---------------------------------------------------------------------------------------


def read(entries: Iterable[Entry], find: Callable[[str], Option | ForeignKey]) -> Values:
    """Parse the settings from one place."""
    values: Values = {}
    for key, value, origin in entries:
        try:
            declared = find(key)
            parsed = declared.parse(value)
            if isinstance(declared, ForeignKey):
                continue
            if declared.key in values:
                before = values[declared.key][2]
                raise InvalidOptionsError(
                    f"{declared.key} is set twice; remove it here or from {before}"
                )
        except InvalidOptionsError as error:
            facts = error.facts | {"key": key, "origin": origin}
            raise InvalidOptionsError(f"{origin}: {error}", **facts) from None
        values[declared.key] = declared, parsed, origin
    return values


def store_options(entries: Iterable[Entry]) -> tuple[list[Entry], dict[str, object]]:
    """Return the options for the store's client by name, and all other entries."""
    others: list[Entry] = []
    store: dict[str, object] = {}
    for key, value, origin in entries:
        if key.lower().startswith(STORAGE_OPTIONS.lower()):
            store[key[len(STORAGE_OPTIONS) :]] = value
        else:
            others.append((key, value, origin))
    return others, store


def build(
    kind: type[OptionsT], values: Values, section: str = "", /, **other_fields: object
) -> OptionsT:
    """Create an instance of an option class from the values in its section."""
    chosen = {
        declared.field: (value, origin)
        for declared, value, origin in values.values()
        if declared.section == section
    }
    try:
        return kind(**other_fields, **{field: value for field, (value, _) in chosen.items()})
    except InvalidOptionsError as error:
        keys = {declared.field: declared.key for declared in options_of(kind, section)}
        origins = [
            f"{keys[field]} comes from {chosen[field][1] if field in chosen else 'the defaults'}"
            for field in error.fields
        ]
        origin = f" ({', '.join(origins)})" if origins else ""
        raise InvalidOptionsError(f"{error}{origin}", **error.facts) from None
