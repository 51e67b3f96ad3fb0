"""Combine the figures of a micro-batch's tasks."""

from __future__ import annotations

from collections.abc import Sequence

from statelog.spark.worker.protocol import TaskAck


def slowest_phases(acks: Sequence[TaskAck]) -> dict[str, float]:
    """Return the longest duration of each phase over all tasks."""
    longest: dict[str, float] = {}
    for ack in acks:
        for phase, milliseconds in ack.milliseconds.items():
            longest[phase] = max(longest.get(phase, 0.0), milliseconds)
    return longest


def summed_catch_up(acks: Sequence[TaskAck]) -> dict[str, int]:
    """Return the sums of how the tasks brought their state forward."""
    return {
        "folded": sum(ack.caught_up.folded for ack in acks),
        "replayed": sum(ack.caught_up.replayed for ack in acks),
        "restored": sum(ack.caught_up.restored for ack in acks),
        "local": sum(ack.caught_up.local for ack in acks),
        "compacted": sum(ack.caught_up.compacted for ack in acks),
    }
