"""`statelog replay`: replay a recorded key through the current processor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from statelog import extras
from statelog.checkpoint.attachments import UnreadableAttachment
from statelog.checkpoint.history import open_state
from statelog.cli import options
from statelog.cli.output import plural, print_json, say
from statelog.cli.rows import report_unreadable
from statelog.errors import CorruptionError, UsageError
from statelog.extensions.recordings.location import read_recordings
from statelog.extensions.recordings.replay_text import show_recordings, show_step, step_json
from statelog.extensions.recordings.step import RecordedStep, steps_of
from statelog.state.keys.state_key import key_from_text
from statelog.store import ObjectStore

if TYPE_CHECKING:
    from statelog.extensions.testing.replay import ReplayedStep
    from statelog.spark.rows.spark_versions import StatefulProcessor


def replay(
    location: options.Location,
    key: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY",
            help=f"{options.KEY_FORMS} Omit the key to list the recorded keys.",
        ),
    ] = None,
    *,
    since: options.Since = None,
    operator: options.Operator = None,
    processor: Annotated[
        str | None,
        typer.Option(
            help="Processor class, or a function that returns a processor, as module:Class or file.py:Class; required if a key is given.",
            metavar="MODULE:CLASS",
        ),
    ] = None,
    pdb: Annotated[
        bool, typer.Option("--pdb", help="Open the debugger at the first difference or error.")
    ] = False,
    as_json: options.Json = False,
) -> bool:
    """
    Replay a recorded key through the current processor, and compare the results.

    To record keys, set the query's `record` setting. Each step replays one micro-batch of the key,
    starting from the recorded state and timers. The command compares the resulting rows, state and
    timers with the recorded ones. The command reports and skips recordings that are damaged or
    missing.  Exit status 1 if a step differs or fails, or if a recording is skipped.

    Examples:
        statelog replay s3://bucket/jobs/fraud
        statelog replay s3://bucket/jobs/fraud c42 --processor jobs.fraud:FraudRule
        statelog replay s3://bucket/jobs/fraud c42 --processor fraud.py:FraudRule --pdb
    """
    store = open_state(location)
    unreadable: list[UnreadableAttachment] = []
    if not key:
        show_recordings(_recorded_keys(store, unreadable), as_json=as_json)
        return report_unreadable(unreadable)
    extras.require_spark("replaying a processor")
    steps = _recorded_steps(store, key, unreadable, operator, since)
    gaps = report_unreadable(unreadable)
    if processor is None:
        _refuse_no_processor(steps)
    replayed = _replayed(steps, _processor(processor, location), pdb=pdb)
    for step in replayed:
        if as_json:
            print_json(step_json(step))
        else:
            show_step(step)
    if not as_json:
        _summary(replayed, processor)
    return gaps or any(step.differences or step.error is not None for step in replayed)


def _recorded_keys(
    store: ObjectStore, unreadable: list[UnreadableAttachment]
) -> list[RecordedStep]:
    keys: list[RecordedStep] = []
    for stored, task in read_recordings(store, unreadable):
        try:
            keys += steps_of(task)
        except CorruptionError as error:
            unreadable.append(UnreadableAttachment(stored.path, str(error)))
    return keys


def _recorded_steps(
    store: ObjectStore,
    key: Sequence[str],
    unreadable: list[UnreadableAttachment],
    operator: str | None,
    since: str | None,
) -> list[RecordedStep]:
    """Return the recorded steps of a key, which is given as text."""
    from statelog.extensions.testing.replay import recorded_steps

    # The types of a key decide what its text means, and recordings may have different ones.
    refused: UsageError | None = None
    values: list[tuple[object, ...]] = []
    schemas = []
    for _, task in read_recordings(store, []):  # the steps report what is skipped
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
    # Without a recording the text stands for the key, in the error that there is none.
    sought = values[0] if values else tuple(key)
    return recorded_steps(store, sought, unreadable=unreadable, operator=operator, since=since)


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
    text = f"{plural(len(steps), 'step')} with {processor}: "
    text += f"{differ} differ" if differ else "no difference"
    text += f", {failed} failed as recorded" if failed else ""
    say((text, "bold red" if differ or failed else "green"))
