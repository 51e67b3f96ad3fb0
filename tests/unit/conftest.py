"""What tests of units share: the command line, called as a user calls it."""

import pytest


@pytest.fixture
def call(capsys):
    from statelog.cli.main import run

    def call(*arguments: str, status: int = 0) -> str:
        found = run(arguments)
        said = capsys.readouterr()
        assert found == status, said
        assert "Traceback" not in said.err
        return said.out if status == 0 else said.out + said.err

    return call
