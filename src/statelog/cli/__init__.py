"""The command line: `statelog …`.  A verb is a function; a module has the verbs of one subject."""

from statelog.extras import require

require("the command line", "cli", "typer", "rich")
