"""
Find the key groups and keys with most of the rows.

Rows are counted by key group.  Keys are counted only where one key group has a large share of an
Arrow batch, so that the count costs nothing while the load is even.
"""

from __future__ import annotations

from collections.abc import Sequence

from statelog.spark.query.progress import LargeKey, LargeKeyGroup
from statelog.spark.worker.protocol import TaskAck
from statelog.spark.worker.row_counter import MIN_LARGE_ROWS, REPORTED_MAX

DOMINATING_SHARE = 0.5


def largest_groups(acks: Sequence[TaskAck]) -> list[LargeKeyGroup]:
    """Return the largest key groups of a micro-batch."""
    total = sum(ack.rows for ack in acks)
    top = sorted((one for ack in acks for one in ack.top_groups), key=lambda one: -one[1])
    return [
        {"key_group": key_group, "rows": rows, "share": round(rows / total, 4)}
        for key_group, rows in top[:REPORTED_MAX]
    ]


def largest_keys(acks: Sequence[TaskAck]) -> list[LargeKey]:
    """Return the largest keys of a micro-batch."""
    total = sum(ack.rows for ack in acks)
    top = sorted((one for ack in acks for one in ack.top_keys), key=lambda one: -one[2])
    return [
        {"key": key, "key_group": key_group, "rows": rows, "share": round(rows / total, 4)}
        for key_group, key, rows in top[:REPORTED_MAX]
    ]


def skew_warning(groups: Sequence[LargeKeyGroup], keys: Sequence[LargeKey]) -> str:
    """Return a warning of a dominating key or key group, or ""."""
    if not groups or groups[0]["rows"] < MIN_LARGE_ROWS:
        return ""
    if keys and keys[0]["share"] >= DOMINATING_SHARE:
        return (
            f"key {keys[0]['key']} has {keys[0]['share']:.0%} of the rows; the rows of one key "
            "always go to one task, so more tasks do not help"
        )
    if groups[0]["share"] >= DOMINATING_SHARE:
        return (
            f"key group {groups[0]['key_group']} has {groups[0]['share']:.0%} of the rows, "
            "which always go to one task"
        )
    return ""
