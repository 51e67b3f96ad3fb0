"""Stop in the debugger where a replayed step fails or differs."""

from __future__ import annotations

import pdb
import sys
from collections.abc import Callable
from typing import IO, Final

from statelog.spark.rows.spark_versions import StatefulProcessor
from statelog.spark.testing.replay import ReplayedStep, replay_step
from statelog.spark.testing.replay_tester import StepResult

_METHODS: Final = ("handleExpiredTimer", "handleInitialState", "handleInputRows")
"""The methods of a processor in which the debugger stops; a recording may name any text."""


def debug_step(
    step: ReplayedStep,
    processor: StatefulProcessor,
    *,
    stdin: IO[str] | None = None,
    stdout: IO[str] | None = None,
) -> None:
    """
    Open the debugger at the first difference of a step, or at its error.

    A step that fails is opened where the processor raised.  A step that differs is run again, and
    stops where the processor is called.

    Args:
        step: A step with an error or with differences.
        processor: The processor.
        stdin: Where commands are read; None for the terminal.
        stdout: Where the debugger prints; None for the terminal.
    """
    sys.stdout.flush()
    # Without a .pdbrc: the one in the working directory may be a file of the location.
    debugger = pdb.Pdb(stdin=stdin, stdout=stdout or sys.stdout, readrc=False)
    cause = None if step.error is None else step.error.__cause__
    if cause is not None and cause.__traceback__ is not None:
        debugger.reset()
        debugger.interaction(None, cause.__traceback__)
        return
    called = {call.method for call in step.recorded.calls}
    for method in [each for each in _METHODS if each in called] or ["handleInputRows"]:
        code = getattr(getattr(type(processor), method, None), "__code__", None)
        if code is not None:
            # As the debugger's `break function`: at its first line, not at its definition.
            debugger.set_break(code.co_filename, code.co_firstlineno, funcname=method)
    debugger.rcLines.append("continue")

    def run(call: Callable[[], StepResult]) -> StepResult:
        results: list[StepResult] = []
        debugger.runcall(lambda: results.append(call()))
        return results[0]

    replay_step(step.recorded, processor, run)
