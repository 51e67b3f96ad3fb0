"""What lies in the repository is finished, and true on every machine."""

import ast
import re
from pathlib import Path

import pytest
from tests.house.sources import ROOT, breaches, modules, name_of, repository_files, text_of, tree_of

# Put together from pieces, so that this file does not find itself.
PACKAGE_INDEX = re.compile("index" + "[-_]url|--find" + r"-links|:/" + r"/\S*/simple\b", re.I)
MACHINE_PATH = re.compile(
    r"(?<![\w.}~])/(?:"
    + "|".join(["ro" + "ot", "wo" + "rk", "home/[a-z]\\w*", "Users/\\w+"])
    + ")/"
)
LEFT_OPEN = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
UNFINISHED_NAME = "NotImplemented" + "Error"
PINNED = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.!+]+")


def text_files() -> list[tuple[Path, str]]:
    files = []
    for path in repository_files():
        try:
            files.append((path, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue  # golden files and the like
    return files


def findings(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name_of(path)}:{number}: {line.strip()[:120]}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_file_names_a_package_index() -> None:
    assert [] == findings(PACKAGE_INDEX)


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    assert [] == findings(MACHINE_PATH)


def left_open(path: Path) -> list[str]:
    names = (node.id for node in ast.walk(tree_of(path)) if isinstance(node, ast.Name))
    return LEFT_OPEN.findall(text_of(path)) + [name for name in names if name == UNFINISHED_NAME]


def test_no_module_is_left_open() -> None:
    assert {} == breaches(modules(), left_open)


def test_no_module_is_empty() -> None:
    assert [] == [name_of(path) for path in modules() if not text_of(path).strip()]


def test_constraints_are_pins_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [] == [line for line in pins if not PINNED.fullmatch(line)]
    names = [re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in pins]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (PACKAGE_INDEX, "pip install --index" + "-url somewhere"),
        (PACKAGE_INDEX, "https:/" + "/packages.example/simple"),
        (MACHINE_PATH, "cd /ro" + "ot/statelog"),
        (MACHINE_PATH, 'open("/wo' + 'rk/data.csv")'),
        (LEFT_OPEN, "# TO" + "DO: later"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)
