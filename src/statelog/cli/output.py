"""
Shared by all verbs: the console, locations, times and sizes as text, and JSON.

All output of the command line is written here.  The console and the table take what they get as plain
text: they escape what a terminal would obey, and they read no markup.  A line is one `print`, so
that a line break in a stored name makes no line.
"""

from __future__ import annotations

import datetime as dt
import errno
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
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

FINDING_STYLES: Final = {"damage": "bold red", "attention": "yellow", "note": "dim"}
_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}
_DURATION: Final = Kind(
    "duration",
    partial(read_duration, bare_unit="s"),
    "a duration such as 90s, 30m, 1h or 7d",
)


class PlainConsole(Console):
    """A rich console that prints text without markup, and with escapes; one line a call."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print text, or a `PlainTable`."""
        super().print(*map(_plain, objects), **options)


class PlainTable(Table):
    """A rich table whose cells are text without markup, and with escapes."""

    def add_column(self, header: Any = "", *arguments: Any, **options: Any) -> None:
        """Add a column."""
        super().add_column(_plain(header), *arguments, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row."""
        super().add_row(*map(_plain, cells), **options)


def _plain(content: Any) -> Any:
    """Return text as the console prints it; what is no text unchanged."""
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
    """A console that raises a broken pipe to the caller."""

    def on_broken_pipe(self) -> None:
        """Raise the broken pipe."""
        raise BrokenPipeError


def console() -> PipeConsole:
    """Return a console on standard output; 160 columns if that is not a terminal."""
    width = None if sys.stdout.isatty() else 160
    return PipeConsole(highlight=False, width=width)


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """
    Show on a terminal's standard error that work goes on; yields a function that updates the text.

    Nothing is shown elsewhere, so that output for programs stays as it is.
    """
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    with PlainConsole(stderr=True).status(_plain(text)) as status:
        yield lambda text: status.update(_plain(text))


def print_error(message: str) -> None:
    """Print an error on standard error; its second and further lines are indented."""
    out = PlainConsole(stderr=True, highlight=False, soft_wrap=True)
    first, *more = message.split("\n")
    out.print(Text.assemble(("statelog: ", "bold red"), first))
    for line in more:  # a line break in a stored name begins no line that seems to be ours
        out.print(f"  {line}")


def print_json(value: Mapping[str, object]) -> None:
    """Print one JSON line."""
    sys.stdout.write(plain_json(json_of(value)) + "\n")


def json_of(value: object) -> str:
    """Return JSON of a value; numbers that JSON does not have are the text NaN, Infinity or -Infinity."""
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
    """Open a state location that must exist, also by the checkpointLocation that has it."""
    store = open_state(location)
    if not is_state(store):
        raise UsageError(
            f"{location} is not a state location: neither it nor its folder {STATE_FOLDER} contains a "
            "checkpoint or a claim (chk-<number>/_metadata)"
        )
    return store


def open_file(file: str) -> tuple[ObjectStore, str]:
    """Return the store of a file, and its name there."""
    url = normalize_url(file)
    folder, _, name = url.rpartition("/")
    if not name or folder.endswith("/"):
        raise UsageError(f"{file} is not the name of a file; give the path or URL of one file")
    path = local_path(url)
    if path is not None and os.path.isdir(path):
        raise UsageError(f"{file} is a directory; give one file, such as {file}/_metadata")
    location, name = split_object(url)
    return open_existing(location or "file:///", file), name


def open_existing(location: str, shown: str = "") -> ObjectStore:
    """Open a store whose folder must exist."""
    # The client would create the directory, and a misspelt location would appear empty.
    return open_existing_store(location, shown=shown)


def write_text(file: Path, text: str, location: str) -> None:
    """Write a file whole, or leave what is there."""
    check_named_file(location, file)
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise UsageError(
            f"cannot write {file}: it is a symbolic link, a folder or a device; give the name of a file"
        )
    try:
        if not file.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        write_object(str(file.parent), file.name, text.encode("utf-8"), fsync=False)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from error


def parse_duration(text: str, name: str = "the duration") -> dt.timedelta:
    """Return the duration in *text*: a number and a unit; seconds where there is no unit."""
    return _DURATION.parse(text, name)


def utc(milliseconds: int | None) -> str:
    """Return a time as text, "" for none, or the number if no calendar has the time."""
    if milliseconds is None:
        return ""
    moment = utc_time(milliseconds)
    return f"{milliseconds} ms" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def size_text(size_bytes: int) -> str:
    """Return a size as text."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(count: int, noun: str) -> str:
    """Return "1 object" or "2 objects"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
