"""Names of a package that are imported from their modules at their first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def names_on_first_use(
    package: str,
    homes: Mapping[str, str],
    unknown: Callable[[str], Exception] | None = None,
) -> Callable[[str], object]:
    """
    Return the `__getattr__` of a package.

    Args:
        package: Its name.
        homes: Names by module, with blanks between them.
        unknown: Makes the error of an unknown name; None for Python's own.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def of_package(name: str) -> object:
        if name in home_of:
            return getattr(importlib.import_module(home_of[name]), name)
        # Called here, because it looks at the frame of the caller.
        raise (
            AttributeError(f"module {package!r} has no attribute {name!r}")
            if unknown is None
            else unknown(name)
        )

    return of_package
