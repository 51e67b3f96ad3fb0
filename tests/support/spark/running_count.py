"""The processors of Spark's own tests of its tester."""

import re
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from tests.support.spark.versions import TwsTester

from statelog.spark import StatefulProcessor


class RunningCount(StatefulProcessor):
    """The processor of the examples: counts rows by key."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "count long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        count = initialState["initial_count"]
        self.count.update((count if isinstance(count, int) else count.iloc[0],))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        (count,) = self.count.get() or (0,)
        count += sum(1 for _ in rows)
        self.count.update((count,))
        yield Row(key=key[0], count=count)

    def close(self) -> None:
        pass


class RunningCountInPandas(RunningCount):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        (count,) = self.count.get() or (0,)
        count += sum(len(frame) for frame in rows)
        self.count.update((count,))
        yield pd.DataFrame({"key": [key[0]], "count": [count]})


class RunningCountStatefulProcessorFactory:
    """Named as in the examples."""

    def row(self) -> StatefulProcessor:
        return RunningCount()

    def pandas(self) -> StatefulProcessor:
        return RunningCountInPandas()


def examples() -> list[tuple[str, str]]:
    """The code of each example in TwsTester's docstring, and the result that its comment promises."""
    examples_with_results = []
    text = TwsTester.__doc__ or ""
    for part in re.split(r"\*\*Example \d+", text)[1:]:
        code = "\n".join(
            line.strip()[4:] for line in part.splitlines() if line.strip()[:4] in (">>> ", "... ")
        )
        promised = re.search(r"# (?:Result|Returns): (.*)", code)
        assert promised is not None
        examples_with_results.append((code, promised.group(1)))
    return examples_with_results
