"""
The options of the format statelog: how they are declared, and the options of a read.

Each is declared once, by a field of `SourceOptions`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, TypeVar

from statelog.checkpoint.at_time import parse_time
from statelog.checkpoint.tags import check_name
from statelog.errors import InvalidOptionsError, UsageError
from statelog.model import KeyGroupRange
from statelog.options.declaration import describe_arguments
from statelog.spark.query.setting import STORAGE_OPTIONS, storage_option_of
from statelog.store.encryption import with_source

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

STATE_VIEW: Final = "state"
CHANGES_VIEW: Final = "changes"
CHECKPOINTS_VIEW: Final = "checkpoints"
DEFAULT_READER_CHECKPOINTS: Final = 1000
"""How far a named reader may fall behind: within a day at a micro-batch in 90 seconds."""
_LATEST: Final = "latest"
_EARLIEST: Final = "earliest"
_RANGE: Final = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")

T = TypeVar("T")
OptionsT = TypeVar("OptionsT", bound="DataclassInstance")


# --- how an option of the format is declared -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FormatOption:
    """
    What is declared of one option of the format.

    Args:
        text: What it does, for the docstring.
        parse: Returns the parsed value; called with name and text.
        views: The views that take it.
        also: Another name of it: the one of the rest of statelog, or Spark's.
    """

    text: str
    parse: Callable[[str, str], object]
    views: Sequence[str]
    also: str


def _as_given(name: str, value: str) -> str:
    return value


def format_option(
    default: T,
    text: str,
    parse: Callable[[str, str], object] = _as_given,
    *,
    views: Sequence[str],
    also: str = "",
) -> T:
    """Return a dataclass field that declares an option; see `FormatOption` for the arguments."""
    text += f" Also `{also}`." if also else ""
    return field(default=default, metadata={"option": FormatOption(text, parse, views, also)})


def _declared(kind: type[DataclassInstance]) -> Mapping[str, FormatOption]:
    """Return the options that the fields of *kind* declare, by name."""
    return {each.name: each.metadata["option"] for each in fields(kind) if each.metadata}


def _documented(kind: type[OptionsT]) -> type[OptionsT]:
    """Put the texts of the options that a class declares into its docstring."""
    describe_arguments(kind, {name: option.text for name, option in _declared(kind).items()})
    return kind


def _positive(name: str, value: str) -> int:
    """Return a number of 1 or more; raises `InvalidOptionsError` otherwise."""
    if not re.fullmatch(r"[1-9]\d*", value.strip(), re.ASCII):
        raise InvalidOptionsError(f"{name} must be a number of 1 or more, not {value!r}")
    return int(value)


def _view(name: str, value: str) -> str:
    view = (value or STATE_VIEW).lower()
    if view not in _VIEWS:
        raise InvalidOptionsError(
            f"view must be {', '.join(_VIEWS[:-1])} or {_VIEWS[-1]}, not {view!r}"
        )
    return view


def _checkpoint(name: str, value: str) -> str | None:
    """Return a number, a tag or a time as it was given; None for the newest checkpoint."""
    checkpoint = (value or _LATEST).strip()
    if checkpoint.lower() == _LATEST:
        return _LATEST if name == "sinceCheckpoint" else None
    if checkpoint.lower() == _EARLIEST:
        return _EARLIEST
    if re.fullmatch(r"\d+", checkpoint, re.ASCII):
        return checkpoint
    for check in (check_name, parse_time):
        try:
            check(checkpoint)
        except UsageError:
            continue
        return checkpoint
    raise InvalidOptionsError(
        f"{name} must be a number, {_LATEST}, {_EARLIEST}, a tag, or a time of ISO 8601 such as "
        f"2026-11-22T10:30:00Z, not {checkpoint!r:.100}"
    )


def _batch(name: str, value: str) -> int:
    if not re.fullmatch(r"\d+", value.strip(), re.ASCII):
        raise InvalidOptionsError(f"{name} must be the number of a micro-batch, not {value!r:.100}")
    return int(value)


def _reader(name: str, value: str) -> str:
    try:
        return check_name(value)
    except UsageError as error:
        raise InvalidOptionsError(f"the option reader: {error}") from error


def _columns(name: str, value: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(","))
    if not all(names):
        raise InvalidOptionsError(
            f"columns must be names with commas between them, not {value!r:.100}"
        )
    return names


def _key_groups(name: str, value: str) -> KeyGroupRange:
    matched = _RANGE.fullmatch(value)
    start, end = (matched[1], matched[2] or matched[1]) if matched else ("1", "0")
    if int(start) > int(end):
        raise InvalidOptionsError(
            f"keyGroups must be one key group such as 3, or a range such as 0-15, not {value!r}"
        )
    return KeyGroupRange(int(start), int(end))


def _switch(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise InvalidOptionsError(f"{name} must be true or false, not {value!r}")
    return value.strip().lower() == "true"


# --- the options of a read ------------------------------------------------------------------------

_VIEWS: Final = (STATE_VIEW, CHANGES_VIEW, CHECKPOINTS_VIEW)
_ROWS: Final = (STATE_VIEW, CHANGES_VIEW)


@_documented
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """
    The options of `spark.read.format("statelog")`, and of `readStream`.

    A checkpoint is given as a number, "latest", "earliest", the name of a tag, or a time of ISO
    8601: the newest retained one that was created at or before it.  Options of the store's client
    are given as `storageOptions.<name>`.

    Raises:
        InvalidOptionsError: A name is unknown or missing, or a value has the wrong form.
    """

    path: str = format_option(
        "",
        "The state location; `load(path)` sets it.",
        views=_VIEWS,
    )
    view: str = format_option(
        STATE_VIEW,
        '"state" for the rows of one state variable, "changes" for what checkpoints changed, '
        '"checkpoints" for one row per checkpoint.',
        _view,
        views=_VIEWS,
    )
    stateVarName: str | None = format_option(
        None,
        'The state variable; None for the only one, and for all in the view "changes".',
        views=_ROWS,
        also="variable",
    )
    operatorId: str | None = format_option(
        None, "The operator; None for the only one.", views=_ROWS, also="operator"
    )
    keyGroups: KeyGroupRange | None = format_option(
        None,
        'The key groups to read, as "3" or "0-15"; None for all.',
        _key_groups,
        views=_ROWS,
    )
    partitions: int | None = format_option(
        None,
        "Number of partitions; None for one per 32 MiB of stored bytes.",
        _positive,
        views=_ROWS,
    )
    checkpoint: str | None = format_option(
        None,
        'The checkpoint whose state, or up to which changes are read; None for the newest one ("latest").',
        _checkpoint,
        views=_ROWS,
    )
    sinceCheckpoint: str | None = format_option(
        None,
        "Changes after this one; None for the whole state first, as inserts.",
        _checkpoint,
        views=(CHANGES_VIEW,),
    )
    batchId: int | None = format_option(
        None,
        "The micro-batch whose checkpoint is read, in place of `checkpoint`; it must be retained.",
        _batch,
        views=(STATE_VIEW,),
    )
    columns: tuple[str, ...] | None = format_option(
        None,
        "The columns to read, separated by commas; None for all.",
        _columns,
        views=(STATE_VIEW,),
    )
    flattenCollections: bool = format_option(
        True,
        "One row for each element, entry and timer; False for one row per key.",
        _switch,
        views=(STATE_VIEW,),
        also="flattenCollectionTypes",
    )
    filterPushdown: bool = format_option(
        False,
        "Read only the key groups that filters on the key leave; needs Spark's setting "
        "spark.sql.python.filterPushdown.enabled (Spark 4.1 and later).",
        _switch,
        views=(STATE_VIEW,),
    )
    maxCheckpointsPerTrigger: int | None = format_option(
        None,
        "Checkpoints of a micro-batch of a stream; None for all.",
        _positive,
        views=(CHANGES_VIEW,),
    )
    reader: str | None = format_option(
        None,
        "Name under which a stream keeps its position in the location; None for none.",
        _reader,
        views=(CHANGES_VIEW,),
    )
    readerMaxCheckpoints: int = format_option(
        DEFAULT_READER_CHECKPOINTS,
        "How many checkpoints the position of `reader` keeps at most.",
        _positive,
        views=(CHANGES_VIEW,),
    )
    store: Mapping[str, object] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """
        Return the options of a read.

        Args:
            given: Spark's options; names in any case.

        Raises:
            InvalidOptionsError: A name is unknown or missing, or a value has the wrong form.
        """
        texts, store = _texts(given)
        if not texts.get("path"):
            raise InvalidOptionsError(
                'the format statelog needs a state location: spark.read.format("statelog")'
                ".load(location)"
            )
        _check_view(_view("view", texts.get("view", STATE_VIEW)), texts)
        if "batchId" in texts and "checkpoint" in texts:
            raise InvalidOptionsError("batchId and checkpoint both name a checkpoint: give one")
        if "readerMaxCheckpoints" in texts and "reader" not in texts:
            raise InvalidOptionsError("readerMaxCheckpoints needs the option reader, a name")
        build: Callable[..., SourceOptions] = cls
        declared = _declared(cls)
        values = {name: declared[name].parse(name, text) for name, text in texts.items()}
        return build(**values, store=store)


def _texts(given: Mapping[str, str]) -> tuple[dict[str, str], Mapping[str, object]]:
    """
    Return the texts of the options that are given, and the options of the store.

    Raises:
        InvalidOptionsError: A name is unknown.
    """
    options = {name.lower(): value for name, value in given.items()}
    store = {
        option: options.pop(name)
        for name in list(options)
        if (option := storage_option_of(name)) is not None
    }
    names = _declared(SourceOptions)
    texts: dict[str, str] = {}
    for name, declared in names.items():
        spellings = (name, declared.also)
        given_as = [each for each in spellings if each and each.lower() in options]
        if len(given_as) > 1:
            raise InvalidOptionsError(
                f"the format statelog: {' and '.join(given_as)} are one option: give one"
            )
        for each in given_as:
            texts[name] = options.pop(each.lower())
    if options:
        # Values are not shown: one of them may be a secret.
        raise InvalidOptionsError(
            f"the format statelog has no option {', '.join(sorted(options))}; it has "
            f"{', '.join(names)}, and {STORAGE_OPTIONS}<name> for an option of the store"
        )
    return texts, with_source(store)


def _check_view(view: str, given: Mapping[str, str]) -> None:
    """Raise `InvalidOptionsError` where an option is given that the view does not take."""
    declared = _declared(SourceOptions)
    unused = [name for name in declared if name in given and view not in declared[name].views]
    if unused:
        taken = [name for name in declared if view in declared[name].views]
        of_view = ", ".join(name for name in taken if name not in ("path", "view"))
        raise InvalidOptionsError(
            f"the view {view} takes no {', '.join(unused)}; it takes "
            f"{of_view or 'no options but the path'}"
        )
