"""The command line: `statelog …`.  One verb, one module."""

from statelog.extras import require

require("the command line", "cli", "typer", "rich")
