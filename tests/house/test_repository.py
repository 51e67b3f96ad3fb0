"""What lies in the repository is finished, and true on every machine."""

import io
import re
import tokenize
from pathlib import Path

import pytest
from tests.house.sources import ROOT, modules, name_of, repository_files

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


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_no_module_is_left_open(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [] == LEFT_OPEN.findall(text)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    assert UNFINISHED_NAME not in {token.string for token in tokens}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_no_module_is_empty(path: Path) -> None:
    assert path.read_text(encoding="utf-8").strip() != ""


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
