"""Where a processor that a test pickles can note what it is called with: found again by name."""

from typing import Any

CALLS: list[tuple[Any, ...]] = []
