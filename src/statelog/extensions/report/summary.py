"""Summarize a location: what it is, its size and health, and the next commands."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass

import pyarrow as pa

from statelog.checkpoint.history import Entries
from statelog.checkpoint.ownership import describe_claim
from statelog.checkpoint.retained import list_tags
from statelog.errors import StatelogError
from statelog.extensions.report.collect import ReportPlan, collect_with_newest
from statelog.extensions.report.figures import Figures, Finding
from statelog.format.checkpoint_record import ClaimRecord
from statelog.model import CompletedCheckpoint, JsonObject
from statelog.state.reader import StateReader
from statelog.store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableSummary:
    """
    A summary of one state variable.

    Args:
        name: Its name.
        kind: value, list, map, timer, reducing or aggregating.
        columns: Names and types of its values.
        ttl_ms: Time to live in milliseconds; None without one.
    """

    name: str
    kind: str
    columns: str
    ttl_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSummary:
    """A summary of one operator of the query."""

    name: str
    key: str
    variables: tuple[VariableSummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """
    The main facts about a location.

    Args:
        figures: Its figures, without keys.
        operators: The operators as of the newest checkpoint; empty if that cannot be read.
        claimed: Who claimed the location after its newest checkpoint; "" if there is none.
        pins: What keeps checkpoints: tags, forks and readers, as text.
        findings: What stands out, the worst first.
    """

    figures: Figures
    operators: tuple[OperatorSummary, ...]
    claimed: str
    pins: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def kind(self) -> str:
        """A description of what the location is."""
        return (
            "the state of a query" if self.figures.checkpoints else "claimed, without a checkpoint"
        )

    def next_steps(self, location: str) -> tuple[str, ...]:
        """Return the commands to run next, with *location* as the caller spelled it."""
        place = shlex.quote(location)
        if self.figures.newest is None:
            return (f"statelog checkpoints {place}",)
        steps = [f"statelog checkpoints {place}"]
        names = [variable.name for operator in self.operators for variable in operator.variables]
        if names:
            operator = (
                f" --operator {shlex.quote(self.operators[0].name)}"
                if len(self.operators) > 1
                else ""
            )
            steps.insert(0, f"statelog read {place} {shlex.quote(names[0])}{operator}")
        if self.figures.is_damaged:
            steps.append(f"statelog verify {place} --repair")
        return (*steps, f"statelog report {place}", f"statelog verify {place}")

    def to_json(self) -> JsonObject:
        """Return the facts for use by a program; `statelog report --json` prints all figures."""
        figures = self.figures
        newest = self.figures.newest
        return {
            "location": figures.location,
            "kind": self.kind,
            "query_id": figures.query_id,
            "delivery": figures.delivery,
            "time_mode": figures.time_mode,
            "key_groups": figures.key_groups,
            "operators": [asdict(operator) for operator in self.operators],
            "newest": None if newest is None else newest.checkpoint_id,
            "newest_batch_id": None if newest is None else newest.batch_id,
            "newest_created_at_ms": None if newest is None else newest.created_at_ms,
            "state_entries": None if newest is None else newest.state_entries,
            "retained": sum(checkpoint.state == "retained" for checkpoint in figures.checkpoints),
            "stored_checkpoints": len(figures.checkpoints),
            "stored": [asdict(objects) for objects in figures.stored],
            "claimed": self.claimed,
            "pins": list(self.pins),
            "findings": [asdict(finding) for finding in self.findings],
        }


def summarize(store: ObjectStore, location: str) -> Summary:
    """Summarize a location without reading its state."""
    plan = ReportPlan(with_key_groups=False)
    figures, newest = collect_with_newest(store, location, plan)
    operators: tuple[OperatorSummary, ...] = ()
    unreadable: tuple[Finding, ...] = ()
    if newest is not None:
        try:
            operators = tuple(_operator(store, newest, name) for name in figures.operators)
        except StatelogError as error:  # the query deleted it meanwhile, or it has another form
            unreadable = (Finding("attention", str(error).splitlines()[0]),)
    return Summary(
        figures=figures,
        operators=operators,
        claimed=_claimed(store),
        pins=tuple(
            f"{tag.kind.value} {tag.name}: checkpoint {tag.checkpoint_id}"
            for tag in list_tags(store)
        ),
        findings=(*unreadable, *figures.findings),
    )


def _operator(store: ObjectStore, newest: CompletedCheckpoint, name: str) -> OperatorSummary:
    with StateReader(store, newest, operator=name) as reader:
        variables = tuple(
            VariableSummary(
                name=variable.name,
                kind=variable.kind_text,
                columns=_columns(*(variable.user_key_schema or ()), *variable.value_schema),
                ttl_ms=variable.ttl_ms,
            )
            for variable in reader.variables()
        )
        key = _columns(*reader.schema.key_schema)
    return OperatorSummary(name=name, key=key, variables=variables)


def _columns(*fields: pa.Field) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in fields)


def _claimed(store: ObjectStore) -> str:
    try:
        top = Entries(store).top()
    except StatelogError as error:
        return f"unknown ({error})"
    return describe_claim(top) if isinstance(top, ClaimRecord) else ""
