"""Options that several verbs have."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from statelog.store.parents import ENVIRONMENT

CHECKPOINT_FORMS = "an id, latest, earliest, a tag, or a time such as 2026-11-22T10:30:00+01:00"
LocationArgument = Annotated[str, typer.Argument(help="State location: a path or URL.")]
OperatorOption = Annotated[
    str | None,
    typer.Option(
        help="operatorId, where the query has several operators; not needed for a variable that only one "
        "of them has."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonLinesOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help='Print JSON lines; NaN and infinite numbers are "NaN", "Infinity", "-Infinity".',
    ),
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(help=f"The checkpoint: {CHECKPOINT_FORMS}. The newest one by default."),
]
ParentOption = Annotated[
    list[str] | None,
    typer.Option(
        "--parent",
        metavar="URL",
        help="Read this parent of a fork, which is in another bucket or store or was moved; may be repeated.",
    ),
]


def with_parents(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a verb with the option `--parent`, which names the parents of forks for this call."""

    @functools.wraps(verb)
    def named(*arguments: object, parent: Sequence[str] | None = None, **options: object) -> None:
        with _environment(parent or ()):
            verb(*arguments, **options)

    signature = inspect.signature(verb, eval_str=True)
    option = inspect.Parameter(
        "parent", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ParentOption
    )
    parameters = [*signature.parameters.values(), option]
    named.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    named.__annotations__ = {each.name: each.annotation for each in parameters}
    return named


@contextmanager
def _environment(parents: Sequence[str]) -> Iterator[None]:
    """Add *parents* to the environment variable that all readers of this call use."""
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
