"""
Named points at which a crash test kills the process.

`STATELOG_FAIL_POINTS="after-upload:3"` sends SIGKILL to the process when it reaches `after-upload`
for the third time; several points are separated by commas.  An unarmed fail point costs one lookup
in an empty dict.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

from statelog.errors import InvalidOptionsError

VARIABLE: Final = "STATELOG_FAIL_POINTS"

_counting = threading.Lock()


def parse_fail_points(text: str) -> dict[str, int]:
    """Parse how many hits remain for each named point."""
    armed: dict[str, int] = {}
    for point in filter(None, (piece.strip() for piece in text.split(","))):
        name, separator, count = point.partition(":")
        if not name or not separator or not count.isdigit() or int(count) < 1:
            raise InvalidOptionsError(
                f"{VARIABLE}={text!r}: {point!r} is not valid; use name:count with count >= 1"
            )
        armed[name] = int(count)
    return armed


_armed: Final = parse_fail_points(os.environ.get(VARIABLE, ""))


def fail_point(name: str) -> None:
    """Kill this process if the point *name* is armed and its count is reached."""
    if name in _armed:
        with _counting:
            _armed[name] -= 1
            due = _armed[name] == 0
        if due:
            os.kill(os.getpid(), signal.SIGKILL)
