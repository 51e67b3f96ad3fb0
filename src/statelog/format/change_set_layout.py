"""
One change set as bytes: Flink's layout.

All integers are big-endian, signed, 32 bits::

    changeSet := numGroups  group{numGroups}
    group     := numChanges  keyGroup  change{numChanges}     count first, then the key group
    change    := length  bytes

The metadata group (key group -1) comes first where there is one.  Data groups are written in
ascending order; readers accept any order.  Inside a group, changes keep their append order.
Source: Flink, StateChangeFormat.
"""

from __future__ import annotations

import struct
from typing import Final

INT: Final = struct.Struct(">i")
GROUP: Final = struct.Struct(">ii")
LONE_CHANGE: Final = struct.Struct(">iii")
"""A group of one change: count, key group and length, before the bytes."""
INT_SIZE: Final = INT.size
