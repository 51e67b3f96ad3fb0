"""The sources as the house tests see them: parsed once, without importing them."""

import ast
import functools
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
NOT_OURS = {".git", ".venv", "build", "dist", "__pycache__"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> list[Path]:
    """Every module of the packages that are shipped."""
    return sorted(path for path in SRC.rglob("*.py") if "__pycache__" not in path.parts)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path), filename=str(path))


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def breaches(
    paths: Iterable[Path], breaches_of: Callable[[Path], Iterable[object]]
) -> dict[str, list[object]]:
    """Return what breaks a rule, by file: one test for each rule, not for each file."""
    by_name = {name_of(path): list(breaches_of(path)) for path in paths}
    return {name: breaks for name, breaks in by_name.items() if breaks}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(path: Path) -> Iterator[Function]:
    """Every function and method in a module, nested ones too."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, Function):
            yield node


def has_docstring(node: ast.Module | ast.ClassDef | Function) -> bool:
    return ast.get_docstring(node, clean=False) is not None


def repository_files() -> list[Path]:
    """What git tracks or would track; in an unpacked archive, what lies there."""
    listed = _git_files()
    if listed is None:
        listed = [
            path
            for path in ROOT.rglob("*")
            if not any(
                part in NOT_OURS or part.endswith("_cache") for part in path.relative_to(ROOT).parts
            )
        ]
    return sorted(path for path in listed if path.is_file())


def _git_files() -> list[Path] | None:
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    names = [name for name in listed.stdout.split("\0") if name]
    # In an archive unpacked inside another repository, git would answer for that one.
    return [ROOT / name for name in names] if "pyproject.toml" in names else None
