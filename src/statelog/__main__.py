"""The command `statelog`, which can also be run as `python -m statelog`."""

from __future__ import annotations

import sys

from statelog import __version__
from statelog.errors import RequirementError

_EXIT_USAGE = 2


def main() -> None:
    """Run the command line in this process; exit with 2 if required packages are missing."""
    if sys.argv[1:] == ["--version"]:  # needs none of them
        sys.stdout.write(f"statelog {__version__}\n")
        return
    try:
        from statelog.cli.main import app
    except RequirementError as error:
        sys.stderr.write(f"statelog: {error}\n")
        sys.exit(_EXIT_USAGE)
    app()


if __name__ == "__main__":
    main()
