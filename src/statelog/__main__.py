"""The command `statelog`, also as `python -m statelog`."""

from __future__ import annotations

import sys

from statelog.errors import RequirementError

_EXIT_USAGE = 2


def main() -> None:
    """Run the command line of this process; exit with 2 if its packages are missing."""
    try:
        from statelog.cli.main import app
    except RequirementError as error:
        sys.stderr.write(f"statelog: {error}\n")
        sys.exit(_EXIT_USAGE)
    app()


if __name__ == "__main__":
    main()
