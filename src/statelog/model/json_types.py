"""Types of values that travel as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""A value that JSON can express."""

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object as a decoder returns it; the reader checks what each name holds."""
