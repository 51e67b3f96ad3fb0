"""The arguments and options that are common to several verbs."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from statelog.cli.output import EXIT_FINDING
from statelog.store.parents import ENVIRONMENT

CHECKPOINT_FORMS = "an id, latest, earliest, a tag, or a time such as 2026-11-22T10:30:00+01:00"
Location = Annotated[
    str,
    typer.Argument(metavar="LOCATION", help="State location or checkpointLocation: a path or URL."),
]
KEY_FORMS = (
    r"Values of the key columns, in order. '\N' means null, and '\\N' means the text \N. "
    "Put -- before a negative number."
)
Key = Annotated[list[str], typer.Argument(metavar="KEY", help=KEY_FORMS)]
Operator = Annotated[
    str | None,
    typer.Option(
        help="Name of the operator; required if the query has several, unless the variable identifies it."
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON document per line; infinity and NaN become strings."
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(help=f"Checkpoint to use: {CHECKPOINT_FORMS}. Default: the newest checkpoint."),
]
Since = Annotated[
    str | None,
    typer.Option(help=f"Include only changes committed after this checkpoint: {CHECKPOINT_FORMS}."),
]
Query = Annotated[
    str | None,
    typer.Option(
        help="The query's checkpointLocation, if the checkpoint does not record it or the folder was moved."
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--variable", help="Name of a state variable to publish. Can be repeated. Default: all."
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        help="Print at most this many rows; 0 prints all. Default: 20, or all with --json.", min=0
    ),
]
To = Annotated[
    Path | None,
    typer.Option(
        help="Write the rows to this new Parquet file instead of printing them.", metavar="FILE"
    ),
]
MinAge = Annotated[
    str, typer.Option(help="Keep objects that are younger than this, such as 90s, 30m, 1h or 7d.")
]
Apply = Annotated[
    bool,
    typer.Option(
        "--apply", help="Make the changes. Without this option, the command only prints them."
    ),
]
Parent = Annotated[
    list[str] | None,
    typer.Option(
        "--parent",
        metavar="URL",
        help="URL of a fork's parent, if the parent was moved or is in a different bucket or store. Can be repeated.",
    ),
]

Verb = Callable[..., bool | None]
"""A verb returns whether it has a finding, which is exit status 1."""


def command_of(verb: Verb, *, reads_location: bool = True) -> Callable[..., None]:
    """Return the parser callback of a verb, with `--parent` if the verb reads a location."""

    @functools.wraps(verb)
    def command(*arguments: object, parent: Sequence[str] | None = None, **options: object) -> None:
        with _environment(parent or ()):
            finding = verb(*arguments, **options)
        if finding:
            raise typer.Exit(EXIT_FINDING)

    signature = inspect.signature(verb, eval_str=True)
    parameters = list(signature.parameters.values())
    if reads_location:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter("parent", kind, default=None, annotation=Parent))
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


@contextmanager
def _environment(parents: Sequence[str]) -> Iterator[None]:
    """Add *parents* to the environment variable that all readers in this process use."""
    before = os.environ.get(ENVIRONMENT)
    if parents:
        os.environ[ENVIRONMENT] = ",".join((*parents, *filter(None, [before])))
    try:
        yield
    finally:
        if before is not None:
            os.environ[ENVIRONMENT] = before
        elif parents:
            os.environ.pop(ENVIRONMENT, None)
