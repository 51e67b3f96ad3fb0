"""The parts of extensions in the extras of a task."""

import pytest

from statelog.errors import InvariantError
from statelog.extensions.bad_records.dead_letters import (
    BAD_RECORDS,
    NO_FAILURE,
    FailedPart,
    failures_of,
)
from statelog.model import KeyGroupRange
from statelog.spark.worker.protocol import TaskAck, TaskPlace, part_of


def ack(**extras: object) -> TaskAck:
    return TaskAck(TaskPlace(0, KeyGroupRange(0, 127)), extras=extras)


def test_a_part_is_what_the_extension_answered_or_nothing() -> None:
    failed = FailedPart(2, "the first")
    assert failed is failures_of(ack(**{BAD_RECORDS: failed}))
    assert NO_FAILURE is failures_of(ack())
    assert part_of({}, "a", int) is None


@pytest.mark.parametrize("extras", [{BAD_RECORDS: ()}, {"side_outputs": {}}])
def test_a_part_of_another_type_is_not_taken_for_nothing(extras: dict[str, object]) -> None:
    with pytest.raises(InvariantError, match=f"extension {next(iter(extras))} is a"):
        failures_of(ack(**extras))
        part_of(extras, "side_outputs", tuple)
