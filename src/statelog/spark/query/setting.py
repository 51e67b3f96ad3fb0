"""Declare a setting by its name, parser, places and text."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from statelog.errors import InvalidOptionsError
from statelog.options.units import describe_size, parse_count

T = TypeVar("T")


class Place(enum.Flag):
    """The places where a setting may be set."""

    SESSION = enum.auto()
    CODE = enum.auto()
    WRITER = enum.auto()
    ANY = SESSION | CODE | WRITER


@dataclass(frozen=True, slots=True)
class Setting:
    """
    The declaration of one setting.

    Args:
        name: The name as users type it.
        parse: Returns the parsed value; called with the given value, and the key for its error.
        values: Its type, for the documentation.
        text: The documentation.
        places: Where it may be set.
        option: Key of docs/reference/options.md that the setting sets; "" for none.
        least: Its least value, where it is a number.
    """

    name: str
    parse: Callable[..., object]
    values: str
    text: str
    places: Place = Place.ANY
    option: str = ""
    least: int | None = None

    @property
    def described_values(self) -> str:
        """Type and range, for the documentation."""
        if self.least is None:
            return self.values
        least = describe_size(self.least) if self.values == "bytes" else str(self.least)
        return f"{self.values}, at least {least}"

    def check(self, value: object) -> None:
        """Raise `InvalidOptionsError` if a value is too small."""
        if self.least is not None and isinstance(value, int) and value < self.least:
            raise InvalidOptionsError(f"{self.name} is at least {self.least}; got {value}")


STORAGE_OPTIONS: Final = "storageOptions."
"""Before the name of an option of the store's client, in configuration and options of readers and writers."""


def storage_option_of(key: str) -> str | None:
    """Return the name of the store's option that *key* sets, or None."""
    is_option = key.lower().startswith(STORAGE_OPTIONS.lower())
    return key[len(STORAGE_OPTIONS) :] if is_option else None


def choice_of(kind: type[enum.Enum]) -> Callable[..., enum.Enum]:
    """
    Return a function that parses the value of a member of *kind*.

    It raises `InvalidOptionsError` for another value.
    """

    def parse(value: object, *, key: str) -> enum.Enum:
        try:
            return kind(value.lower() if isinstance(value, str) else value)
        except ValueError:
            choices = " or ".join(member.value for member in kind)
            raise InvalidOptionsError(
                f"option {key!r} is {value!r}; it must be {choices}"
            ) from None

    return parse


def parse_checkpoint(value: object, *, key: str) -> int | str:
    """Return "latest", "empty" or a checkpoint id; raises `InvalidOptionsError` otherwise."""
    if value in ("latest", "empty"):
        return str(value)
    try:
        checkpoint = parse_count(value, key=key)
    except InvalidOptionsError:
        checkpoint = -1
    if checkpoint < 0:
        raise InvalidOptionsError(
            f"option {key!r} is {value!r}; it must be 'latest', 'empty' or a checkpoint id"
        )
    return checkpoint


def parse_names(value: object, *, key: str) -> tuple[str, ...]:
    """Return names, from a sequence or from text with commas; raises `InvalidOptionsError` otherwise."""
    names = value.split(",") if isinstance(value, str) else value
    if isinstance(names, Sequence) and all(isinstance(name, str) for name in names):
        return tuple(name.strip() for name in names if name.strip())
    raise InvalidOptionsError(f"option {key!r} is {value!r}; it must be a list of names")


def as_given(value: object, *, key: str) -> object:
    """Return *value*: an object that only code can set."""
    return value


def setting(
    name: str,
    parse: Callable[..., object],
    values: str,
    text: str,
    *,
    default: T | None = None,
    default_factory: Callable[[], T] | None = None,
    places: Place = Place.ANY,
    option: str = "",
    least: int | None = None,
    compare: bool = True,
) -> T:
    """Return a dataclass field that declares a setting; see `Setting` for the arguments."""
    declared = {"setting": Setting(name, parse, values, text, places, option, least)}
    if default_factory is not None:
        return field(default_factory=default_factory, compare=compare, metadata=declared)
    return field(default=cast("T", default), metadata=declared)
