"""
The entry point: verbs, exit codes, and errors without tracebacks.

Exit status: 0 success, 1 a finding (damage, an object that could not be deleted, a store that
failed), 2 a wrong call, 130 interrupted, 141 standard output was closed.
A verb is a function, in a module of its own or of its subject, and one line here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from statelog import __version__
from statelog.cli.cat import cat
from statelog.cli.checkpoints import checkpoints
from statelog.cli.copy import copy
from statelog.cli.demo import demo
from statelog.cli.edit import edit
from statelog.cli.export import export
from statelog.cli.forget import forget
from statelog.cli.gc import gc
from statelog.cli.output import (
    EXIT_BROKEN_PIPE,
    EXIT_FINDING,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    print_error,
)
from statelog.cli.repair import repair
from statelog.cli.replay import replay
from statelog.cli.report import report
from statelog.cli.rewind import rewind
from statelog.cli.savepoints import fork, tag, untag
from statelog.cli.sql import sql
from statelog.cli.state import diff, get, history, read
from statelog.cli.verify import verify
from statelog.errors import ObjectNotFoundError, StatelogError, UsageError

verbs = typer.Typer(
    name="statelog",
    help="Inspect, verify and clean up durable streaming state.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
verbs.command()(checkpoints)
verbs.command()(demo)
verbs.command()(read)
verbs.command()(get)
verbs.command()(history)
verbs.command()(diff)
verbs.command()(sql)
verbs.command()(export)
verbs.command()(cat)
verbs.command()(gc)
verbs.command()(verify)
verbs.command()(repair)
verbs.command()(rewind)
verbs.command()(tag)
verbs.command()(untag)
verbs.command()(fork)
verbs.command()(report)
verbs.command()(replay)
verbs.command()(copy)
verbs.command()(forget)
verbs.command()(edit)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"statelog {__version__}\n")
        raise typer.Exit(EXIT_OK)


@verbs.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    del version


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one call (None: of this process) and return its exit status."""
    try:
        result = verbs(args=arguments, prog_name="statelog", standalone_mode=False)
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
