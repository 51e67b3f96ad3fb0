"""Where a test is: units mirror the source, and what tests share is in modules without tests."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.sources import ROOT, SRC, breaches, name_of, text_of, tree_of

TESTS = ROOT / "tests"
UNITS = TESTS / "unit"
EXCEPTIONS = {
    "changelog/test_public_nouns.py": "changelog/__init__.py, without a storage",
    "extensions/operations/test_histories.py": "fork.py, copy_location.py and rewind.py: timelines",
    "extensions/operations/test_killed_commands.py": "all commands that change a location",
}
"""Units of several modules, below `tests/unit`, and what they cover."""


def covered(path: Path) -> str | None:
    """Return the module of a unit: `test_storage_metrics.py` covers `storage`."""
    folder = SRC / "statelog" / path.relative_to(UNITS).parent
    words = path.stem.removeprefix("test_").split("_")
    for end in range(len(words), 0, -1):
        name = "_".join(words[:end])
        if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file():
            return name
    return None


def test_each_unit_is_named_after_a_module_or_is_an_exception() -> None:
    """Name it test_<module>.py or test_<module>_<topic>.py, or add it to `EXCEPTIONS`."""
    nowhere = {
        path.relative_to(UNITS).as_posix() for path in UNITS.rglob("test_*.py") if not covered(path)
    }
    assert EXCEPTIONS.keys() == nowhere


def test_a_unit_of_no_module_is_found() -> None:
    assert "storage" == covered(UNITS / "changelog" / "test_storage_metrics.py")
    assert covered(UNITS / "changelog" / "test_hazards.py") is None
    assert covered(UNITS / "test_storage.py") is None


def test_helpers_are_in_support_or_stand_next_to_their_tests() -> None:
    """What units of one folder share is its `support.py`; everything else is in `tests/support`."""
    names = {"conftest.py", "support.py"}
    assert ["conftest.py"] == sorted(path.name for path in TESTS.glob("*.py"))
    units = {path for path in UNITS.rglob("*.py") if not path.name.startswith("test_")}
    assert [] == sorted(name_of(path) for path in units if path.name not in names)


def imports_of_tests(path: Path) -> Iterator[tuple[str, str]]:
    """Return the module and the name of each import from `tests`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tests":
            for alias in node.names:
                yield str(node.module), alias.name


def file_of(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


def importers() -> list[Path]:
    return sorted(
        path for folder in ("tests", "bench", "tools") for path in (ROOT / folder).rglob("*.py")
    )


def imports_of_test_modules(path: Path) -> Iterator[str]:
    for module, name in imports_of_tests(path):
        for imported in (module, f"{module}.{name}"):
            if imported.rpartition(".")[2].startswith("test_"):
                yield imported


def test_no_module_imports_from_a_test_module() -> None:
    """Move what both need into `tests/support`, or into a module without tests next to them."""
    assert {} == breaches(importers(), imports_of_test_modules)


def names_in(path: Path) -> set[str]:
    """Return what a module defines or imports."""
    names = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def broken_imports(path: Path) -> Iterator[str]:
    for module, name in imports_of_tests(path):
        if file_of(module).is_file():
            if name not in names_in(file_of(module)):
                yield f"{module} has no {name}"
        elif not file_of(f"{module}.{name}").is_file():
            yield f"there is no {module}.{name}"


def test_what_is_imported_from_tests_is_there() -> None:
    """Tests that run on Spark or in campaigns alone would show it late."""
    assert {} == breaches(importers(), broken_imports)


def test_the_table_of_tests_names_what_is_there() -> None:
    text = text_of(TESTS / "README.md")
    paths = re.findall(r"`((?:tests|support)/[\w/.-]+)`|PURE_TESTS=\"?([\w/. ]+)", text)
    names = [name for pair in paths for part in pair for name in part.split()]
    assert len(names) > 40
    files = [ROOT / name if name.startswith("tests/") else TESTS / name for name in names]
    assert [] == sorted(
        name_of(path) for path in files if not path.exists() and "/a/" not in str(path)
    )
