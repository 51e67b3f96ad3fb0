"""The command that a failing history prints, taken apart again."""

import shlex


def command_of(message: str) -> tuple[str, list[str]]:
    """Return module and arguments of the `python -m` command in *message*."""
    words = shlex.split(message.rpartition("replay: ")[2].splitlines()[0])
    assert words[:2] == ["python", "-m"], message
    return words[2], words[3:]
