"""
The examples of docs/how-to/flink-examples.md run.

The names of docs/reference/flink-map.md exist.
"""

import re
from pathlib import Path

import pytest
from tests.house.sources import ROOT

from statelog import changelog as cl

EXAMPLES = (ROOT / "docs" / "how-to" / "flink-examples.md").read_text(encoding="utf-8")
MAP = (ROOT / "docs" / "reference" / "flink-map.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, list[str]]:
    parts = re.split(r"^## (.+)$", EXAMPLES, flags=re.MULTILINE)[1:]
    return {title: BLOCK.findall(text) for title, text in zip(parts[::2], parts[1::2], strict=True)}


def test_every_section_has_code_that_checks_itself() -> None:
    assert EXAMPLES.count("```python") == sum(map(len, sections().values()))
    assert [] == [title for title, blocks in sections().items() if "assert " not in "".join(blocks)]


@pytest.mark.parametrize("title", sections())
def test_the_example_runs(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    for number, block in enumerate(sections()[title], 1):
        exec(compile(block, f"flink-examples.md, {title}, block {number}", "exec"), names)


def test_the_examples_use_public_names_only() -> None:
    used = set(re.findall(r"\bcl\.(\w+)", EXAMPLES))
    assert set() == used - set(cl.__all__)
    assert {"from statelog import changelog as cl"} == set(
        re.findall(r".*statelog import.*", EXAMPLES)
    )


def test_the_names_of_the_map_exist() -> None:
    rows = re.findall(r"^\| `(?:\w+)` \| `(\w+).*` .*\|$", MAP, re.MULTILINE)
    assert len(rows) > 20
    classes = {name for name in rows if name[0].isupper()}
    assert set() == (classes | set(re.findall(r"`cl\.(\w+)", MAP))) - set(cl.__all__)
    assert all((ROOT / file).is_file() for file in re.findall(r"`(tests/[\w/]+\.py)", MAP))
