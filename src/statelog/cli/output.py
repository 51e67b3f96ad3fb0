"""
Print the output of all verbs: lines, tables, JSON, errors and dry-run reports.

All output of the command line is written here.  The console and the table take their content as
plain text: they escape control characters, and they ignore markup.  One call of `say` prints one
line, so a line break in a stored name does not begin a line.
"""

from __future__ import annotations

import datetime as dt
import errno
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Span, Text

from statelog.checkpoint.history import is_state, open_state
from statelog.errors import UsageError
from statelog.options.kinds import Kind, read_duration
from statelog.plain_text import one_line, plain_json
from statelog.runtime.clock import utc_time
from statelog.store import LocationStore, ObjectStore, open_existing_store
from statelog.store.local_disk import check_named_file, write_object
from statelog.store.location import local_path, normalize_url
from statelog.store.paths import STATE_FOLDER, split_object

EXIT_OK: Final = 0
EXIT_FINDING: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141

_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}
_DURATION: Final = Kind(
    "duration",
    partial(read_duration, bare_unit="s"),
    "a duration such as 90s, 30m, 1h or 7d",
)


class PlainConsole(Console):
    """A rich console that prints one line of escaped text per call and ignores markup."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print a text or a `PlainTable`."""
        super().print(*map(_plain, objects), **options)


class PlainTable(Table):
    """A rich table whose cells contain escaped text without markup."""

    def add_column(self, header: Any = "", *arguments: Any, **options: Any) -> None:
        """Add a column."""
        super().add_column(_plain(header), *arguments, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row."""
        super().add_row(*map(_plain, cells), **options)


def _plain(content: Any) -> Any:
    """Escape text in the way the console prints it; return other values unchanged."""
    if isinstance(content, str):
        return Text(one_line(content))
    if not isinstance(content, Text) or content.plain.isprintable():
        return content
    # The escapes are longer than what they replace, and move the styles after them.
    places = [0]
    for character in content.plain:
        places.append(places[-1] + len(one_line(character)))
    spans = [Span(places[span.start], places[span.end], span.style) for span in content.spans]
    return Text(
        one_line(content.plain),
        content.style,
        justify=content.justify,
        overflow=content.overflow,
        no_wrap=content.no_wrap,
        spans=spans,
    )


class PipeConsole(PlainConsole):
    """A console that raises an error to the caller when a pipe is broken."""

    def on_broken_pipe(self) -> None:
        """Raise the broken pipe."""
        raise BrokenPipeError


def console() -> PipeConsole:
    """Return a console for standard output, 160 columns wide if that is not a terminal."""
    width = None if sys.stdout.isatty() else 160
    return PipeConsole(highlight=False, width=width)


def say(*parts: str | tuple[str, str] | Text) -> None:
    """Print a line from parts; each part is either text or a pair of text and style."""
    console().print(Text.assemble(*parts), soft_wrap=True)


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    numbers: Collection[str] = (),
    whole: Collection[str] = (),
    cut: str = "",
) -> None:
    """
    Print a table; the columns in *numbers* are right-aligned.

    The *whole* columns are not wrapped.  The column *cut* is shortened if the terminal is too
    narrow.
    """
    table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    lines = list(rows)
    for place, head in enumerate(heads):
        if head == cut:
            table.add_column(head, no_wrap=True, overflow="ellipsis", ratio=1)
            continue
        width = max(len(head), *(len(line[place]) for line in lines)) if head in whole else None
        justify: JustifyMethod = "right" if head in numbers else "left"
        table.add_column(
            head, justify=justify, no_wrap=head in whole, min_width=width, overflow="fold"
        )
    for line in lines:
        table.add_row(*line)
    console().print(table)


class Change(NamedTuple):
    """
    A change that a command makes, or would make, to an object.

    The *action* is "delete" or "give up", or "failed" or "kept" with the reason in *text*.
    """

    action: str
    text: str
    facts: Mapping[str, object]


_DONE: Final = {"delete": "deleted", "give up": "gave up"}


def print_changes(
    changes: Iterable[Change], summary: Mapping[str, object], *, apply: bool, as_json: bool
) -> None:
    """Print what a command changed or would change, or print it as JSON with the *summary*."""
    for change in changes:
        verb = _DONE.get(change.action, change.action)
        style = "red"
        if change.action in _DONE and not apply:
            verb = f"would {change.action}"
            style = "yellow"
        if as_json:
            print_json({**change.facts, "action": verb.replace(" ", "-")})
        else:
            say((verb, style), f" {change.text}")
    if as_json:
        print_json({"summary": {"dry_run": not apply, **summary}})


def say_dry_run(*, stop_query: bool = False) -> None:
    """Print how to apply the changes of a dry run."""
    stop = " Stop the query first." if stop_query else ""
    say(f"This was a dry run; --apply makes the changes.{stop}")


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """
    Show a command's progress on standard error; yield a function that updates it.

    Nothing is shown if standard error is not a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    with PlainConsole(stderr=True).status(_plain(text)) as status:
        yield lambda text: status.update(_plain(text))


def print_error(message: str) -> None:
    """Print an error on standard error, indenting its second and later lines."""
    first, *more = message.split("\n")
    note(Text.assemble(("statelog: ", "bold red"), first))
    for line in more:  # a line after a line break in a stored name must not look like a message
        note(f"  {line}")


def note(text: str | Text) -> None:
    """Print a line on standard error."""
    PlainConsole(stderr=True, highlight=False, soft_wrap=True).print(text)


def print_json(value: Mapping[str, object]) -> None:
    """Print one JSON line."""
    sys.stdout.write(plain_json(json_of(value)) + "\n")


def json_of(value: object) -> str:
    """Format a value as JSON; NaN and infinite numbers become text."""
    return msgspec.json.encode(_with_finite_numbers(value)).decode()


def _with_finite_numbers(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
        case dict():
            return {name: _with_finite_numbers(item) for name, item in value.items()}
        case list() | tuple():
            return [_with_finite_numbers(item) for item in value]
        case _:
            return value


def open_location(location: str) -> LocationStore:
    """Open an existing state location, or the one in a checkpointLocation."""
    store = open_state(location)
    if not is_state(store):
        raise UsageError(
            f"{location} is not a state location: neither it nor its subfolder {STATE_FOLDER} contains a "
            "checkpoint or a claim (chk-<number>/_metadata)"
        )
    return store


def open_file(file: str) -> tuple[ObjectStore, str]:
    """Return the store that contains a file, and the file's name in that store."""
    url = normalize_url(file)
    folder, _, name = url.rpartition("/")
    if not name or folder.endswith("/"):
        raise UsageError(f"{file} is not a file name; pass the path or URL of a file")
    path = local_path(url)
    if path is not None and os.path.isdir(path):
        raise UsageError(f"{file} is a directory; pass a file, such as {file}/_metadata")
    location, name = split_object(url)
    return open_existing(location or "file:///", file), name


def open_existing(location: str, shown: str = "") -> ObjectStore:
    """Open a store whose folder must already exist."""
    # The client would create the directory, and a misspelt location would appear empty.
    return open_existing_store(location, shown=shown)


def write_text(file: Path, text: str, location: str) -> None:
    """Replace a file atomically; raises `UsageError` if it cannot be written."""
    check_named_file(location, file)
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise UsageError(
            f"cannot write {file}: it is a symbolic link, a folder or a device; pass a file name"
        )
    try:
        if not file.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        write_object(str(file.parent), file.name, text.encode("utf-8"), fsync=False)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from error


def parse_duration(text: str, name: str = "the duration") -> dt.timedelta:
    """Parse a duration: a number and a unit, which is seconds by default."""
    return _DURATION.parse(text, name)


def utc(milliseconds: int | None) -> str:
    """Format a time; None becomes "", and a time that `datetime` lacks stays a number."""
    if milliseconds is None:
        return ""
    moment = utc_time(milliseconds)
    return f"{milliseconds} ms" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def size_text(size_bytes: int) -> str:
    """Format a size with a unit."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun, such as "1 object" or "2 objects"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
