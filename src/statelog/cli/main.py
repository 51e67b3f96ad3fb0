"""
The entry point: the table of verbs, exit codes, and errors without tracebacks.

Exit status: 0 success, 1 a finding (damage, an object that could not be deleted, a store that
failed), 2 a wrong call, 130 interrupted, 141 standard output was closed.  A verb is a function in
the folder of its feature, and one row in the table.  Its docstring is its help, and ends with its
examples.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from statelog import __version__
from statelog.cli.options import Verb, command_of
from statelog.cli.output import (
    EXIT_BROKEN_PIPE,
    EXIT_FINDING,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    note,
    print_error,
    say,
)
from statelog.errors import ObjectNotFoundError, StatelogError, UsageError

_PANELS: Final = {
    "Run": {
        "demo": "statelog.demo.commands",
        "replay": "statelog.extensions.recordings.commands",
    },
    "Inspect": {
        "info": "statelog.extensions.report.commands",
        "checkpoints": "statelog.cli.checkpoints",
        "read": "statelog.extensions.read.commands",
        "get": "statelog.extensions.read.commands",
        "diff": "statelog.extensions.read.commands",
        "sql": "statelog.extensions.read.commands",
        "report": "statelog.extensions.report.commands",
        "dead-letters": "statelog.extensions.bad_records.commands",
        "side-outputs": "statelog.extensions.side_outputs.commands",
        "broadcasts": "statelog.extensions.broadcasts.commands",
        "changelog": "statelog.cli.changelog",
        "audit": "statelog.cli.checkpoints",
    },
    "Change": {
        "tag": "statelog.extensions.operations.commands.savepoints",
        "fork": "statelog.extensions.operations.commands.savepoints",
        "copy": "statelog.extensions.operations.commands.savepoints",
        "rewind": "statelog.extensions.operations.commands.rewind",
        "edit": "statelog.extensions.operations.commands.edit",
        "forget": "statelog.extensions.operations.commands.edit",
        "unfreeze": "statelog.extensions.operations.commands.edit",
        "publish": "statelog.extensions.publish.commands",
    },
    "Operate": {
        "verify": "statelog.extensions.operations.commands.verify",
        "gc": "statelog.cli.checkpoints",
    },
}
"""The module of each verb by panel of the help; the verb is a function of its name."""

_VERBS: Final = {
    verb: (module, panel) for panel, verbs in _PANELS.items() for verb, module in verbs.items()
}

_FIRST_DAY: Final = """\
statelog demo                        run a job, kill it, restart it, verify its state
statelog info LOCATION               describe a state location and its query
statelog checkpoints LOCATION        list the checkpoints
statelog read LOCATION VARIABLE      print the state as of a checkpoint
statelog get LOCATION VARIABLE KEY   print the state of one key

All commands: statelog --help. The options of a command: statelog read --help.
"""
"""The text that is printed without arguments."""

_WITHOUT_PARENTS: Final = ("demo", "changelog")
"""Verbs that do not read a caller's location, or read only a file."""


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
            say(line)
        raise typer.Exit(EXIT_USAGE)


def _with_verbs(names: Sequence[str]) -> typer.Typer:
    """Return the command line with only some of the verbs."""
    program = typer.Typer(
        name="statelog",
        help="Inspect, change and verify durable streaming state.",
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    program.callback(invoke_without_command=True)(_options)
    for name in names:
        verb = _verb(name)
        text, *examples = _help(name)
        command = program.command(
            name,
            rich_help_panel=_VERBS[name][1],
            help=text,
            epilog="\n\n".join(["Examples:", *examples]),
        )
        command(command_of(verb, reads_location=name not in _WITHOUT_PARENTS))
    return program


def _verb(name: str) -> Verb:
    verb: Verb = getattr(importlib.import_module(_VERBS[name][0]), name.replace("-", "_"))
    return verb


def _help(name: str) -> tuple[str, ...]:
    """Return the help text of a verb, with one line per paragraph, and its examples."""
    text, _, examples = (inspect.getdoc(_verb(name)) or "").partition("\n\nExamples:\n")
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return ("\n\n".join(paragraphs), *(line.strip() for line in examples.splitlines()))


def __getattr__(name: str) -> typer.Typer:
    """Return `verbs`, the command line with all verbs."""
    if name == "verbs":
        return _with_verbs(tuple(_VERBS))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; None means the arguments of this process."""
    words = sys.argv[1:] if arguments is None else arguments
    # The modules of the other verbs take longer to import than most verbs take to run.
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
        show = getattr(error, "show", None)
        code = getattr(error, "exit_code", None)
        if not callable(show) or not isinstance(code, int):
            raise
        show()
        if len(names) == 1:
            note(f"Example: {_help(names[0])[1]}")
        return code
    return result if isinstance(result, int) else EXIT_OK


def _broken_pipe() -> int:
    """Redirect standard output so that the interpreter does not report an error at exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    return EXIT_BROKEN_PIPE


def app() -> None:
    """Run the command line of this process."""
    sys.exit(run())


if __name__ == "__main__":
    app()
