"""Call the command as a user does."""

import json

import pytest


class Call:
    """Runs commands, and returns what they print; with another status than 0 also their errors."""

    def __init__(self, capsys) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, status: int = 0) -> str:
        from statelog.cli.main import run

        self._capsys.readouterr()
        ended = run(arguments)
        said = self._capsys.readouterr()
        assert ended == status, said
        assert "Traceback" not in said.err
        return said.out if status == 0 else said.out + said.err

    def lines(self, *arguments: str, status: int = 0) -> list[dict]:
        """Return the objects that a command prints for programs."""
        printed = self(*arguments, "--json", status=status).splitlines()
        return [json.loads(line) for line in printed if status == 0 or line.startswith("{")]


@pytest.fixture
def call(capsys) -> Call:
    return Call(capsys)
