"""The command line: `statelog …`.  One verb, one module."""

import importlib.util

if importlib.util.find_spec("typer") is None or importlib.util.find_spec("rich") is None:
    raise SystemExit(
        "statelog: the command line needs typer and rich; install statelog with its extra 'cli'"
    )
