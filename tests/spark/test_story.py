"""The page docs/tutorial/story.md: its commands print what the page shows."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.house.sources import ROOT
from tests.support.project.snippets import blocks

from statelog.demo.process import processes_of_session

PAGE = ROOT / "docs" / "tutorial" / "story.md"
FILE_NAME = re.compile(r"# (\w+\.py)\n")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
COMMAND_SECONDS = 300


def save_programs(folder: Path) -> None:
    """Write each program of the page to the file that its first line names."""
    for block in blocks(PAGE):
        name = FILE_NAME.match(block.text) if block.language == "python" else None
        if name:
            (folder / name[1]).write_text(block.text, encoding="utf-8")


def shown_outputs() -> list[tuple[str, list[str]]]:
    """Return the commands of the page in order, each with the lines that the page shows after it."""
    shown: list[tuple[str, list[str]]] = []
    for block in blocks(PAGE):
        if block.language != "console":
            continue
        for line in block.text.splitlines():
            if line.startswith("$ "):
                shown.append((line.removeprefix("$ "), []))
            else:
                shown[-1][1].append(line)
    return shown


def run_in_shell(command: str, folder: Path) -> list[str]:
    """Return the lines that a command prints in a shell; a killed one ends with `Killed`."""
    programs = folder / "bin"
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "NO_COLOR": "1",
    }
    with (folder / "errors").open("ab") as errors:
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE,
            stderr=errors, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=COMMAND_SECONDS)
        finally:
            for other in processes_of_session(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
    killed = process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert killed or process.returncode in (0, 1), (folder / "errors").read_text(encoding="utf-8")
    return [*output.splitlines(), *(["Killed"] if killed else [])]


def comparable(lines: list[str]) -> list[str]:
    """Return lines without times, empty lines and spaces at their ends."""
    plain = (TIME.sub("TIME", line).rstrip() for line in lines)
    return [line for line in plain if line]


@pytest.fixture
def reader(tmp_path):
    """Return the folder of a reader, who has the commands `python` and `statelog`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in {"python": "", "statelog": "-m statelog "}.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n', encoding="utf-8")
        program.chmod(0o755)
    save_programs(tmp_path)
    return tmp_path


@pytest.mark.timeout(900)
def test_each_command_of_the_story_prints_what_the_page_shows(reader):
    for command, shown in shown_outputs():
        printed = run_in_shell(command, reader)
        print(f"$ {command}", *printed, sep="\n")
        assert comparable(shown) == comparable(printed), command
