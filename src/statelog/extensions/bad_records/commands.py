"""`statelog dead-letters`: list the processor calls that failed and were skipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from rich.text import Text

from statelog.checkpoint.attachments import UnreadableAttachment
from statelog.cli import options
from statelog.cli.output import plural, print_json, print_table, progress, say
from statelog.cli.rows import open_state, report_unreadable, show_or_write
from statelog.extensions.bad_records.stored import ChosenLetters, letters_rows, letters_table
from statelog.state.reader.location import stored_with_attachments

_HEADS: Final = ("checkpoint", "failed at (UTC)", "operator", "key", "method", "rows", "error")
_ERROR_SHOWN: Final = 120
_JSON_COLUMNS: Final = ("key", "rows", "initial_rows")


def dead_letters(
    location: options.Location,
    *,
    checkpoint: options.Checkpoint = None,
    since: options.Since = None,
    operator: options.Operator = None,
    to: options.To = None,
    as_json: options.Json = False,
) -> int:
    """
    List the dead letters of a query: keys whose processing failed, their rows and errors.

    A query stores dead letters when `onError` is set to `"dead-letter"` or `"freeze"`.  Use
    `statelog replay LOCATION KEY` to run the processor on a dead letter again.  The option --to
    exports the input rows, so that you can send them to the source again.  The command skips
    damaged recordings. Exit status 1 if it skipped any.

    Examples:
        statelog dead-letters s3://bucket/jobs/totals
        statelog dead-letters s3://bucket/jobs/totals --since 41 --json
        statelog dead-letters s3://bucket/jobs/totals --to failed.parquet
    """
    unreadable: list[UnreadableAttachment] = []
    with open_state(location, operator) as state, progress("reading"):
        stored, first = stored_with_attachments(state, checkpoint, since)
        letters = ChosenLetters(state.store, stored, operator, first, unreadable)
        table = letters_table(letters) if to is None else letters_rows(letters)
    if to is not None:
        show_or_write(table, to, limit=None, as_json=as_json)
    elif as_json:
        for letter in table.to_pylist():
            parsed = {name: msgspec.json.decode(letter[name]) for name in _JSON_COLUMNS}
            failed_at = letter["failed_at"]
            parsed["failed_at"] = None if failed_at is None else failed_at.isoformat()
            print_json({**letter, **parsed})
    else:
        if table.num_rows:
            print_table(_HEADS, map(_cells, table.to_pylist()))
        say(plural(table.num_rows, "dead letter"))
    return report_unreadable(unreadable)


def _cells(letter: Mapping[str, Any]) -> list[Text]:
    text = f"{letter['error']}: {letter['message']}"
    failed_at = letter["failed_at"]
    cells = (
        str(letter["checkpoint_id"]),
        "" if failed_at is None else f"{failed_at:%Y-%m-%d %H:%M:%S}",
        letter["operator"],
        " ".join(map(str, msgspec.json.decode(letter["key"]))),
        letter["method"],
        str(letter["row_count"]),
        text if len(text) <= _ERROR_SHOWN else f"{text[:_ERROR_SHOWN]} ...",
    )
    return list(map(Text, cells))
