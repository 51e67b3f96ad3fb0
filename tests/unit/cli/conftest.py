"""Call the command as a user does."""

import pytest

from statelog.cli.main import run


@pytest.fixture
def call(capsys):
    def call(*arguments: str, status: int = 0) -> str:
        found = run(arguments)
        said = capsys.readouterr()
        assert found == status, said
        assert "Traceback" not in said.err
        return said.out if status == 0 else said.out + said.err

    return call
