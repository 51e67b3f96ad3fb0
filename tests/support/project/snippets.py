"""
The code blocks of README and docs, and how each is checked.

`python` blocks run, in the order of their page and in one namespace for each page. `console` blocks
run too: their lines `$ statelog ...` are called. `sh` blocks are for a shell of the reader: their
commands are parsed, not run. A comment `<!-- no-run: reason -->` before a block excludes it.
"""

import ast
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.house.sources import ROOT

FENCE = re.compile(r"^( *)```(.*)$")
NO_RUN = re.compile(r"^<!-- no-run: (\S.*) -->$")

AWAIT = re.compile(r"(\w+)\.awaitTermination\(\d+\)")

SHOWN: frozenset[str] = frozenset({"text", "py"})
"""Languages of blocks that are no code to run: output, grammars, signatures of the API pages."""

RUN: frozenset[str] = frozenset({"python", "console"})

RUN_ELSEWHERE = {
    "docs/contributing/extend.md": "tests/docs/test_pages.py",
    "docs/how-to/flink-examples.md": "tests/docs/test_flink_pages.py",
    "docs/how-to/migration.md": "tests/spark/test_migration.py",
    "docs/how-to/read-state.md": "tests/docs/test_pages.py",
    "docs/how-to/sizing.md": "tests/docs/test_pages.py",
    "docs/tutorial/story.md": "tests/spark/test_story.py",
}
"""Pages whose blocks need surroundings of their own, and the test that runs them."""

PREPARED = "on a prepared location"
"""The reason at blocks that `tests/docs/test_commands.py` runs on a location made for the page."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its page, the line of its fence, language and text; why it is not run."""

    page: str
    line: int
    language: str
    text: str
    no_run: str = ""

    @property
    def runs(self) -> bool:
        return self.language in RUN and not self.no_run

    @property
    def needs_spark(self) -> bool:
        """Whether the code names a session: the variable `spark` or its class."""
        if self.language != "python" or self.no_run:
            return False
        names = {node.id for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.Name)}
        return bool(names & {"spark", "SparkSession"})


def pages() -> list[Path]:
    """Return README and every page of the documentation."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "ARCHITECTURE.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def blocks(path: Path) -> list[Block]:
    blocks_of_page: list[Block] = []
    page = path.relative_to(ROOT).as_posix()
    opened: tuple[int, str, int] | None = None
    before, body = "", []  # type: str, list[str]
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fence = FENCE.match(line)
        if fence and opened is None:
            opened, body = (number, fence[2].strip(), len(fence[1])), []
        elif fence and opened is not None:
            marker = NO_RUN.match(before)
            text = "".join(f"{line}\n" for line in body)
            blocks_of_page.append(
                Block(page, opened[0], opened[1], text, marker[1] if marker else "")
            )
            opened, before = None, ""
        elif opened is not None:
            body.append(line[opened[2] :])
        elif line.strip():
            before = line.strip()
    assert opened is None, f"{page}:{opened} is never closed"
    return blocks_of_page


def pages_to_run(*, with_spark: bool) -> list[str]:
    """Return the pages with code to run that do, or do not, need a session."""
    chosen = []
    for path in pages():
        page = path.relative_to(ROOT).as_posix()
        to_run = [block for block in blocks(path) if block.runs]
        if to_run and page not in RUN_ELSEWHERE:
            needs = any(block.needs_spark for block in to_run)
            chosen += [page] if needs == with_spark else []
    return chosen


def run_page(page: str, folder: Path, names: dict[str, object]) -> None:
    """Run the blocks of a page in order."""
    run_blocks([block for block in blocks(ROOT / page) if block.runs], folder, names)


def run_blocks(chosen: list[Block], folder: Path, names: dict[str, object]) -> None:
    """Run blocks in order, with *folder* for the paths and buckets that they name."""
    for block in chosen:
        text = block.text.replace('"/tmp/', f'"{folder}/').replace(" /tmp/", f" {folder}/")
        text = text.replace("=/tmp/", f"={folder}/")
        text = text.replace("s3://bucket", f"{folder}/bucket")
        if block.language == "console":
            for arguments in commands(text):
                call(arguments)
            continue
        text = AWAIT.sub(r"wait_for_batches(\1)", text)
        # As many lines before it as in the page, so that a traceback names the line of the page.
        exec(compile("\n" * block.line + text, str(ROOT / block.page), "exec"), names)


def commands(text: str) -> list[list[str]]:
    """Return the words of each command of a shell block, without comments and without output."""
    lines = text.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line for line in lines if line.startswith("$ ")]
    words = (shlex.split(line.removeprefix("$ "), comments=True) for line in lines)
    return [word for word in words if word]


def call(arguments: list[str]) -> None:
    """Run `statelog ...` in this process; fail if it ends with an error."""
    from typer.testing import CliRunner

    from statelog.cli.main import verbs

    assert arguments[0] == "statelog", f"only statelog is run in a console block: {arguments}"
    result = CliRunner().invoke(verbs, arguments[1:])
    # `replay` exits with 1 if a step differs or fails, and the step of a dead letter does.
    differs = arguments[1] == "replay" and result.output.endswith(" differ\n")
    assert result.exit_code == int(differs), f"{' '.join(arguments)}: {result.output}"
