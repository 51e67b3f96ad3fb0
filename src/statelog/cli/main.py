"""
The entry point: verbs, exit codes, and errors without tracebacks.

Exit status: 0 success, 1 a finding (damage, an object that could not be deleted, a store that
failed), 2 a wrong call, 130 interrupted, 141 standard output was closed.
A verb is a function, in a module of its own or of its subject, and one line here.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from statelog import __version__
from statelog.cli.options import with_parents
from statelog.cli.output import (
    EXIT_BROKEN_PIPE,
    EXIT_FINDING,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    console,
    print_error,
)
from statelog.errors import ObjectNotFoundError, StatelogError, UsageError

_PANELS: Final = {
    "Run": {"demo": "demo", "replay": "replay"},
    "Inspect": {
        "info": "info",
        "checkpoints": "checkpoints",
        "read": "state",
        "get": "state",
        "history": "state",
        "diff": "state",
        "sql": "state",
        "export": "export",
        "report": "report",
        "dead-letters": "dead_letters",
        "side-outputs": "side_outputs",
        "broadcasts": "broadcasts",
        "changelog": "changelog",
        "audit": "changelog",
    },
    "Change": {
        "tag": "savepoints",
        "untag": "savepoints",
        "fork": "savepoints",
        "copy": "savepoints",
        "rewind": "rewind",
        "edit": "edit",
        "forget": "edit",
        "unfreeze": "dead_letters",
        "publish": "publish",
    },
    "Operate": {"verify": "verify", "gc": "verify", "repair": "repair"},
}
"""The module of each verb by panel of the help; the verb is a function of its name."""

_VERBS: Final = {
    verb: (module, panel) for panel, verbs in _PANELS.items() for verb, module in verbs.items()
}

_FIRST_DAY: Final = """\
statelog demo                        run a job, kill it, restart it, check its state
statelog info LOCATION               what a location is, and how its query runs
statelog checkpoints LOCATION        what can be restored
statelog read LOCATION VARIABLE      the state as of a checkpoint
statelog get LOCATION VARIABLE KEY   the state of one key

All commands: statelog --help; the options of one: statelog read --help
"""
"""What is printed without arguments."""

_WITHOUT_PARENTS: Final = ("demo", "changelog")
"""Verbs that read no location of the caller, or one file only."""


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"statelog {__version__}\n")
        raise typer.Exit(EXIT_OK)


def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    del version
    if context.invoked_subcommand is None:
        for line in _FIRST_DAY.splitlines():
            console().print(line, markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_USAGE)


def _with_verbs(names: Sequence[str]) -> typer.Typer:
    """Return the command line with some of its verbs."""
    program = typer.Typer(
        name="statelog",
        help="Inspect, verify and clean up durable streaming state.",
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    program.callback(invoke_without_command=True)(_options)
    for name in names:
        module, panel = _VERBS[name]
        verb = getattr(importlib.import_module(f"statelog.cli.{module}"), name.replace("-", "_"))
        command = program.command(rich_help_panel=panel)
        command(verb if name in _WITHOUT_PARENTS else with_parents(verb))
    return program


def __getattr__(name: str) -> typer.Typer:
    """Return `verbs`, the command line with all verbs."""
    if name == "verbs":
        return _with_verbs(tuple(_VERBS))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one call (None: of this process) and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    # The modules of the other verbs take longer to import than many a verb to run.
    names = words[:1] if words and words[0] in _VERBS else tuple(_VERBS)
    try:
        result = _with_verbs(names)(args=arguments, prog_name="statelog", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _broken_pipe()
    except SystemExit as stop:  # a broken pipe, as the argument parser reports it
        if isinstance(stop.__context__, BrokenPipeError):
            return _broken_pipe()
        raise
    except (UsageError, ObjectNotFoundError) as error:
        print_error(str(error))
        return EXIT_USAGE
    except StatelogError as error:
        print_error(str(error))
        return EXIT_FINDING
    except Exception as error:
        # The parser's own errors; the module of their class depends on typer's version.
        show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
        if not callable(show) or not isinstance(code, int):
            raise
        show()
        return code
    return result if isinstance(result, int) else EXIT_OK


def _broken_pipe() -> int:
    """Redirect standard output, or the interpreter reports an error at exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    return EXIT_BROKEN_PIPE


def app() -> None:
    """Run the command line of this process."""
    sys.exit(run())


if __name__ == "__main__":
    app()
