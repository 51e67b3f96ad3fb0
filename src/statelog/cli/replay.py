"""`statelog replay`: what a recorded key saw, through the processor of today."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from statelog import extras
from statelog.checkpoint.history import open_state
from statelog.cli.options import CHECKPOINT_FORMS
from statelog.cli.output import EXIT_FINDING, console, plural, print_json
from statelog.cli.replay_show import show_recordings, show_step, step_json
from statelog.cli.state_rows import report_unreadable
from statelog.errors import CorruptionError, UsageError
from statelog.state.keys.state_key import key_from_text
from statelog.state.recordings import (
    UnreadableRecording,
    read_recordings,
    steps_of,
)
from statelog.state.recordings.step import RecordedStep
from statelog.store import ObjectStore

if TYPE_CHECKING:
    from statelog.extensions.testing.replay import ReplayedStep
    from statelog.spark.rows.spark_versions import StatefulProcessor


def replay(
    location: Annotated[str, typer.Argument(help="State location: a path or URL.")],
    key: Annotated[
        list[str] | None,
        typer.Argument(
            help="Values of the key columns, in their order; -- before a negative number. Without "
            "a key the recorded keys are listed."
        ),
    ] = None,
    *,
    from_checkpoint: Annotated[
        str | None,
        typer.Option(
            "--from",
            help=f"Leave out the micro-batches before this checkpoint: {CHECKPOINT_FORMS}.",
        ),
    ] = None,
    operator: Annotated[
        str | None, typer.Option(help="operatorId, where the query has several operators.")
    ] = None,
    processor: Annotated[
        str | None,
        typer.Option(
            help="The processor: module:Class or file.py:Class; a function that returns it will do. "
            "Needed with a key; without it the error tells what the recording names.",
            metavar="MODULE:CLASS",
        ),
    ] = None,
    pdb: Annotated[
        bool, typer.Option("--pdb", help="Stop at the first difference or error in the debugger.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """
    Run what a recorded key saw through the processor of today, and compare.

    A query records keys with the setting `record`.  Each micro-batch of the key is one step: it begins
    with the recorded state and timers, and its rows, state and timers are compared with the recorded
    ones.  Recordings that are damaged or missing are reported and left out.  Exit status 1 if a step
    differs or fails, or a recording is left out.
    """
    store = open_state(location)
    unreadable: list[UnreadableRecording] = []
    if not key:
        show_recordings(_recorded_keys(store, unreadable), as_json=as_json)
        raise typer.Exit(report_unreadable(unreadable))
    extras.require_spark("the replay of a processor")
    steps = _recorded_steps(store, key, unreadable, operator, from_checkpoint)
    gaps = report_unreadable(unreadable)
    if processor is None:
        _refuse_no_processor(steps)
    replayed = _replayed(steps, _processor(processor, location), pdb=pdb)
    for step in replayed:
        if as_json:
            print_json(step_json(step))
        else:
            show_step(step)
    bad = [step for step in replayed if step.differences or step.error is not None]
    if not as_json:
        _summary(replayed, processor)
    raise typer.Exit(EXIT_FINDING if bad else gaps)


def _recorded_keys(store: ObjectStore, unreadable: list[UnreadableRecording]) -> list[RecordedStep]:
    keys: list[RecordedStep] = []
    for stored, task in read_recordings(store, unreadable):
        try:
            keys += steps_of(task)
        except CorruptionError as error:
            unreadable.append(UnreadableRecording(stored.path, str(error)))
    return keys


def _recorded_steps(
    store: ObjectStore,
    key: Sequence[str],
    unreadable: list[UnreadableRecording],
    operator: str | None,
    from_checkpoint: str | None,
) -> list[RecordedStep]:
    """Return the steps of a key that is given as text."""
    from statelog.extensions.testing.replay import recorded_steps

    refused: UsageError | None = None
    values: list[tuple[object, ...]] = []
    schemas = []
    for _, task in read_recordings(store, []):  # the steps report what is left out
        if operator is None or task.operator_id == operator:
            with suppress(CorruptionError):
                schemas.append(task.state_schema().key_schema)
    for schema in schemas:
        try:
            parsed = key_from_text(key, schema)
        except UsageError as error:
            refused = error
            continue
        if parsed not in values:
            values.append(parsed)
    if not values and refused is not None:
        raise refused
    given = values[0] if values else tuple(key)
    return recorded_steps(
        store, given, unreadable=unreadable, operator=operator, from_checkpoint=from_checkpoint
    )


def _processor(name: str, location: str) -> StatefulProcessor:
    from statelog.extensions.testing.find_processor import find_processor

    return find_processor(name, location=location)


def _refuse_no_processor(steps: Sequence[RecordedStep]) -> NoReturn:
    from statelog.extensions.testing.find_processor import refuse_no_processor

    refuse_no_processor(steps[-1].task)


def _replayed(
    steps: Sequence[RecordedStep], processor: StatefulProcessor, *, pdb: bool
) -> list[ReplayedStep]:
    from statelog.extensions.testing.replay import debug_step, replay_step

    replayed = []
    for step in steps:
        recomputed = replay_step(step, processor)
        replayed.append(recomputed)
        if pdb and (recomputed.differences or recomputed.error is not None):
            show_step(recomputed)
            debug_step(recomputed, processor)
            break
    return replayed


def _summary(steps: Sequence[ReplayedStep], processor: str) -> None:
    differ = sum(bool(step.differences) for step in steps)
    failed = sum(step.error is not None and not step.differences for step in steps)
    parts = [f"{plural(len(steps), 'step')} with {processor}"]
    parts.append(f"{differ} differ" if differ else "no difference")
    if failed:
        parts.append(f"{failed} failed as recorded")
    style = "bold red" if differ or failed else "green"
    console().print(": ".join(parts[:2]) + "".join(f", {part}" for part in parts[2:]), style=style)
