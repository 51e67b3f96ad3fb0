"""`statelog read`, `get`, `diff` and `sql`: read the state as of a checkpoint without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from statelog.cli import options
from statelog.cli.output import (
    open_location,
    plural,
    print_error,
    print_json,
    progress,
    say,
    size_text,
    utc,
)
from statelog.cli.rows import rows_of, show_rows
from statelog.errors import UsageError
from statelog.extensions.read.held_state import KeyVersion
from statelog.extensions.read.location_state import LocationState, key_history
from statelog.extensions.read.parquet_files import write_variables
from statelog.redaction import redacted
from statelog.state.keys.state_key import key_from_text
from statelog.state.reader.location import rows_of_key
from statelog.state.reader.state_reader import StateReader


def read(
    location: options.Location,
    variable: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VARIABLE",
            help="Names of state variables, $timers for timers, or $frozen for frozen keys. Default: all.",
        ),
    ] = None,
    *,
    checkpoint: options.Checkpoint = None,
    operator: options.Operator = None,
    to: Annotated[
        Path | None,
        typer.Option(
            help="Instead of printing rows, write a Parquet file per variable to this folder, or a single variable to this file (NAME.parquet)."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    limit: options.Limit = None,
    as_json: options.Json = False,
) -> None:
    """
    Print the state as of a checkpoint: one row per value, list element, map entry or timer.

    The command omits state that had already expired when the checkpoint's micro-batch ran. --to
    writes the same columns to Parquet files, which any engine and `statelog edit` can read. A file
    appears under its final name only when it is complete. The command replaces an existing file
    only with --overwrite, or if an interrupted run wrote it from the same checkpoint.

    Examples:
        statelog read s3://bucket/jobs/totals
        statelog read s3://bucket/jobs/totals total --checkpoint 41 --limit 0
        statelog read s3://bucket/jobs/totals --to /tmp/totals
    """
    if overwrite and to is None:
        raise UsageError("--overwrite requires --to, the folder or file to write")
    with _opened(location, operator) as state:
        reader = state.reader(checkpoint, variable=variable[0] if variable else None)
        names = list(dict.fromkeys(variable or [declared.name for declared in reader.variables()]))
        if to is not None:
            _write(reader, names, to, location, overwrite=overwrite, as_json=as_json)
            return
        time_ms = reader.as_of_ms
        for name in names:
            show_rows(
                rows_of(reader.batches(name)),
                reader.arrow_schema(name).names,
                limit=limit,
                as_json=as_json,
                title=f"{name} as of checkpoint {reader.checkpoint_id}, {utc(time_ms)} UTC",
                extra={"variable": name},
            )


def _opened(location: str, operator: str | None) -> LocationState:
    return LocationState(open_location(location), operator=operator)


def _write(
    reader: StateReader,
    names: Sequence[str],
    to: Path,
    location: str,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write variables to Parquet files, and print the names of the files."""
    place = redacted(location)
    checkpoint_id = reader.checkpoint_id
    with progress("writing") as update:
        files = write_variables(
            reader, names, to, location=place, overwrite=overwrite, update=update
        )
    for name, path, rows in files:
        size = path.stat().st_size
        if as_json:
            facts = {"variable": name, "path": str(path), "rows": rows, "size_bytes": size}
            print_json({**facts, "checkpoint_id": checkpoint_id})
        else:
            wrote = f"wrote {path} ({size_text(size)}): {plural(rows, 'row')}"
            say(f"{wrote} of {name} as of checkpoint {checkpoint_id}")


def get(
    location: options.Location,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[VARIABLE] KEY",
            help=f"Name of a state variable, or $timers for timers. Default: all variables. {options.KEY_FORMS}",
        ),
    ],
    *,
    history: Annotated[
        bool, typer.Option("--history", help="Print the state as of each retained checkpoint.")
    ] = False,
    checkpoint: options.Checkpoint = None,
    operator: options.Operator = None,
    limit: options.Limit = None,
    as_json: options.Json = False,
) -> bool:
    """
    Print the state of one key as of a checkpoint, or its history.

    The command reads only the key group that contains the key.  --history prints the state as of
    each retained checkpoint, oldest first.  Exit status 1 if the key does not exist, or if a
    checkpoint in the history cannot be read; the command still prints the others.

    Examples:
        statelog get s3://bucket/jobs/totals total c42
        statelog get s3://bucket/jobs/totals c42 --checkpoint 41
        statelog get s3://bucket/jobs/totals total c42 --history
    """
    if history:
        if checkpoint is not None:
            raise UsageError("--history prints all retained checkpoints; omit --checkpoint")
        return _history(location, words, operator, limit=limit, as_json=as_json)
    with _opened(location, operator) as state:
        reader = state.reader(checkpoint, variable=words[0])
        names, key = _variables_and_key(reader, words)
        with progress("reading"):
            tables = {name: rows_of_key(reader, name, key) for name in names}
    if not any(table.num_rows for table in tables.values()):
        return _no_such_key(words, names, f"checkpoint {reader.checkpoint_id}")
    for name, table in tables.items():
        if table.num_rows:
            show_rows(
                rows_of(table.to_batches()),
                table.column_names,
                limit=limit,
                as_json=as_json,
                title=f"{name} as of checkpoint {reader.checkpoint_id}",
                extra={"variable": name},
            )
    return False


def _history(
    location: str, words: Sequence[str], operator: str | None, *, limit: int | None, as_json: bool
) -> bool:
    with _opened(location, operator) as state, progress("reading each checkpoint"):
        names, key = _variables_and_key(state.reader(variable=words[0]), words)
        histories = {name: key_history(state, name, key, None) for name in names}
        rows = [
            {
                "variable": name,
                "checkpoint_id": version.checkpoint_id,
                "batch_id": version.batch_id,
                "as_of_ms": version.as_of_ms,
                "as of (UTC)": utc(version.as_of_ms),
                "state": _state_of(state, name, version),
            }
            for name, versions in histories.items()
            for version in versions.versions
        ]
    if not any(row["state"] for row in rows):
        return _no_such_key(words, names, "a retained checkpoint")
    hidden = ["as of (UTC)" if as_json else "as_of_ms"] + ["variable"] * (len(words) > len(key))
    columns = [name for name in rows[0] if name not in hidden]
    chosen = [{name: row[name] for name in columns} for row in rows]
    show_rows(chosen, columns, limit=0 if limit is None else limit, as_json=as_json)
    if not as_json:
        say(_reach(len({row["checkpoint_id"] for row in rows})))
    for versions in histories.values():
        versions.checked()  # raises, after what can be read was printed
    return False


def _variables_and_key(
    reader: StateReader, words: Sequence[str]
) -> tuple[list[str], tuple[object, ...]]:
    """Split words into variables and a key; all variables if each word is a key column."""
    key_schema = reader.schema.key_schema
    names = [declared.name for declared in reader.variables()]
    if len(words) == len(key_schema):
        try:
            return names, key_from_text(words, key_schema)
        except UsageError:
            if words[0] not in names:  # else a value is missing after the variable
                raise
    return [words[0]], key_from_text(words[1:], key_schema)


def _no_such_key(words: Sequence[str], names: Sequence[str], where: str) -> bool:
    """Report that a key does not have state, and return the exit status for that."""
    print_error(f"no such key: {' '.join(words)}; it is not in {', '.join(names)} of {where}")
    return True


def diff(
    location: options.Location,
    before: Annotated[
        str,
        typer.Argument(metavar="BEFORE", help=f"First checkpoint: {options.CHECKPOINT_FORMS}."),
    ],
    after: Annotated[
        str, typer.Argument(metavar="AFTER", help="Second checkpoint, specified in the same way.")
    ],
    *,
    variable: Annotated[str | None, typer.Option(help="Compare only this state variable.")] = None,
    operator: options.Operator = None,
    limit: options.Limit = None,
    as_json: options.Json = False,
) -> None:
    """
    Print the keys whose state differs between two checkpoints, with their state in both.

    State that expired between the checkpoints counts as a difference.

    Examples:
        statelog diff s3://bucket/jobs/totals 40 41
        statelog diff s3://bucket/jobs/totals before-release latest --variable total
    """
    with _opened(location, operator) as state, progress("reading both checkpoints"):
        table = state.changes(before, after, variable)
        retained = 0 if as_json else sum(summary.is_retained for summary in state.checkpoints())
    if as_json:
        show_rows(rows_of(table.to_batches()), table.column_names, limit=limit, as_json=True)
        return
    counts = table.column("change").value_counts().to_pylist()
    text = ", ".join(f"{count['counts']:,} {count['values']}" for count in counts)
    say(f"{text or 'no difference'}; {_reach(retained)}")
    names = [name.partition(".")[2] for name in table.column_names if name.startswith("after.")]
    keys = [name for name in table.column_names if not name.startswith(("before.", "after."))]
    for name in names:
        then = f"before.{name}"
        now = f"after.{name}"
        rows = [row for row in rows_of(table.to_batches()) if row[then] != row[now]]
        if rows:
            title = name if len(names) > 1 else ""
            show_rows(rows, [*keys, then, now], limit=limit, as_json=False, title=title)


def _reach(retained: int) -> str:
    """Describe how far back a location can be read."""
    return f"the location retains {plural(retained, 'checkpoint')} (setting retainedCheckpoints)"


def _state_of(state: LocationState, variable: str, version: KeyVersion) -> object:
    """Return the state in a version, with a map as a list of its entries."""
    by_name = {
        descriptor.name: descriptor for descriptor in state.variables(version.checkpoint_id)
    }.get(variable)
    is_map = by_name is not None and by_name.user_key_schema is not None
    return list(version.value.items()) if is_map else version.value


def sql(
    location: options.Location,
    statement: Annotated[
        str,
        typer.Argument(
            metavar="STATEMENT",
            help="One SQL statement in DuckDB's dialect, such as 'from total limit 5'.",
        ),
    ],
    *,
    checkpoint: options.Checkpoint = None,
    operator: options.Operator = None,
    limit: options.Limit = None,
    allow_files: Annotated[
        bool,
        typer.Option(
            "--allow-files",
            help="Let the statement read and write files, attach databases and load extensions.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """
    Run an SQL statement in DuckDB on the state as of a checkpoint.

    Each state variable is a table of the same name; timers are in a table named timers.  Quote
    names that contain a dot: select "key.customer", "value.total" from total.  The command loads
    the variables named in the statement into memory. Without --allow-files, the statement cannot
    access any other data.  The command requires the sql extra.

    Examples:
        statelog sql s3://bucket/jobs/totals 'from total limit 5'
        statelog sql s3://bucket/jobs/totals 'select count(*) from total' --checkpoint 41
    """
    with _opened(location, operator) as state, progress("reading"):
        table = state.sql(statement, checkpoint, allow_files=allow_files)
    show_rows(rows_of(table.to_batches()), table.column_names, limit=limit, as_json=as_json)
