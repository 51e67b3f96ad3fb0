"""
Which key groups and keys have most of the rows: counted in the tasks, reported by the driver.

Rows are counted by key group.  Keys are looked at only where one key group has a large share of an
Arrow batch, so that the count costs nothing while the load is even.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statelog.spark.worker.protocol import TaskAck
from statelog.spark.worker.row_counter import REPORTED_MAX, ROWS_THAT_MATTER

SHARE_THAT_DOMINATES = 0.5


def largest_groups(acks: Sequence[TaskAck]) -> list[dict[str, Any]]:
    """Return the largest key groups of a micro-batch, with their share of its rows."""
    total = sum(ack.rows for ack in acks)
    top = sorted((one for ack in acks for one in ack.top_groups), key=lambda one: -one[1])
    return [
        {"key_group": key_group, "rows": rows, "share": round(rows / total, 4)}
        for key_group, rows in top[:REPORTED_MAX]
    ]


def largest_keys(acks: Sequence[TaskAck]) -> list[dict[str, Any]]:
    """Return the largest keys of a micro-batch, with their share of its rows."""
    total = sum(ack.rows for ack in acks)
    top = sorted((one for ack in acks for one in ack.top_keys), key=lambda one: -one[2])
    return [
        {"key": key, "key_group": key_group, "rows": rows, "share": round(rows / total, 4)}
        for key_group, key, rows in top[:REPORTED_MAX]
    ]


def skew_warning(groups: Sequence[dict[str, Any]], keys: Sequence[dict[str, Any]]) -> str:
    """Return a warning of a key or key group that has most of the rows, or ""."""
    if not groups or groups[0]["rows"] < ROWS_THAT_MATTER:
        return ""
    if keys and keys[0]["share"] >= SHARE_THAT_DOMINATES:
        return (
            f"key {keys[0]['key']} has {keys[0]['share']:.0%} of the rows; one key is always one "
            "task's work, so more tasks do not help"
        )
    if groups[0]["share"] >= SHARE_THAT_DOMINATES:
        return (
            f"key group {groups[0]['key_group']} has {groups[0]['share']:.0%} of the rows, and is "
            "always one task's work"
        )
    return ""
