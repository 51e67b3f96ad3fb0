"""
The public names of a package, imported from their modules when they are first used.

`__init__.pyi` next to the package has the imports: type checkers read it, and so does this module.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable


def public_names(
    package: str, unknown: Callable[[str], Exception] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package."""
    homes = _imports_of(package)

    def of_package(name: str) -> object:
        if name in homes:
            module, its_name = homes[name]
            value: object = getattr(importlib.import_module(module), its_name)
            # From now on the package has the name, and this function is not called for it.
            setattr(sys.modules[package], name, value)
            return value
        raise (
            AttributeError(f"module {package!r} has no attribute {name!r}")
            if unknown is None
            else unknown(name)
        )

    def names() -> list[str]:
        return sorted([*homes, "__all__", "__doc__", "__name__"])

    return of_package, names, sorted(homes)


def _imports_of(package: str) -> dict[str, tuple[str, str]]:
    """Return, for each public name, its module and its name there."""
    stub = pkgutil.get_data(package, "__init__.pyi")
    homes: dict[str, tuple[str, str]] = {}
    for node in ast.parse(stub or b"").body:
        if isinstance(node, ast.ImportFrom):
            names = {alias.asname or alias.name: alias.name for alias in node.names}
            homes |= {name: (node.module or "", names[name]) for name in names}
    return homes
