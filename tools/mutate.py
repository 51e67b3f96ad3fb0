"""
Run the pure tests against small changes of the source, and list the undetected changes.

    nice -n 10 .venv/bin/python tools/mutate.py --seed 1 --seconds 1500 > build/mutants.txt

Each mutant changes one node of one module's syntax tree.  A process is forked for each; an import
hook gives it the changed module, and pytest runs the tests of that module's area until one fails.
Nothing is written to the source.  Which mutants run, and in which order, follows from the seed.

An own script because the ready tools run one fixed command for every mutant: mutmut and cosmic-ray
would start an interpreter and all tests of the area each time, about ten times as long on one core.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.machinery
import io
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
LIMIT_S = 240
EXAMPLES = 12
"""Limit of Hypothesis examples for each test, because a mutant is run once."""


def _state(*names: str) -> list[str]:
    return [f"tests/unit/state/{name}.py" for name in names]


def _checkpoint(*names: str) -> list[str]:
    return [f"tests/unit/checkpoint/test_{name}.py" for name in names]


_COLUMNAR = "test_keyed_state_columns"
_RECOVERY = [
    *_state("test_replay", _COLUMNAR),
    *_state("encoding/test_snapshot_file", "encoding/test_deltas_upgrade"),
]
TESTS = {
    "state": [
        "tests/unit/state",
        "--deselect=tests/unit/state/test_heap.py::"
        "test_memory_follows_the_live_entries_and_work_the_changes[500]",
    ],
    "checkpoint": [
        "tests/unit/checkpoint",
        "--deselect=tests/unit/checkpoint/test_coordinator.py::test_a_killed_owner_leaves_whole_checkpoints",
        "tests/campaigns/simulation/test_owners.py::"
        "test_nothing_acknowledged_is_lost_and_nothing_reachable_deleted[0]",
    ],
    "extensions": ["tests/unit/extensions"],
    "spark": [
        "tests/unit/spark",
        *(
            f"tests/unit/extensions/{name}"
            for name in ("bad_records", "broadcasts", "side_outputs")
        ),
        "tests/unit/core/test_snapshot_schedule.py",
        "--deselect=tests/unit/extensions/testing/test_processor_tester.py::"
        "test_testing_needs_no_pyspark_until_it_is_asked_for",
    ],
}
FIRST = {
    "state/columnar/sorted_run": _RECOVERY,
    "state/columnar/run_files": _state(_COLUMNAR, "test_replay"),
    "state/columnar/run_set": _state("test_replay", _COLUMNAR),
    "state/encoding/snapshot_file": _RECOVERY,
    "state/heap": _state(_COLUMNAR, "test_heap", "test_replay"),
    "state/keyed_state": _RECOVERY,
    "state/replay": _RECOVERY,
    "checkpoint/coordinator": _checkpoint("coordinator_conflicts", "coordinator"),
    "checkpoint/ownership": _checkpoint("ownership", "coordinator_conflicts", "coordinator"),
    "spark/driver/batch_reports": ["tests/unit/spark/driver/test_batch_reports.py"],
    "spark/driver/state_location": [
        "tests/unit/spark/driver/test_state_location_snapshots.py",
        "tests/unit/core/test_snapshot_schedule.py",
    ],
    "spark/rows/key_order": ["tests/unit/spark/rows/test_key_order.py"],
    "spark/rows/spark_row": ["tests/unit/spark/rows/test_spark_row.py"],
}
"""Modules whose tests are these alone."""


def _modules(area: str) -> list[str]:
    package = SRC / "statelog" / area
    found = (path.relative_to(package).with_suffix("") for path in package.rglob("[a-z]*.py"))
    return sorted(path.as_posix() for path in found)


MODULES = {
    "state": _modules("state"),
    "checkpoint": _modules("checkpoint"),
    "extensions": [name for name in _modules("extensions") if name.startswith("columns/slots")],
    # What pure tests reach of the driver and the worker; the rest runs on Spark only.
    "spark": [
        "driver/batch_reports",
        "driver/batch_times",
        "driver/restart",
        "driver/batch_reports",
        "driver/state_location",
        "query/declared_state",
        "rows/key_order",
        "rows/spark_row",
        "worker/handle",
        "worker/large_input",
        "worker/processor_run",
        "worker/task",
        "worker/task_input",
    ],
}
COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
TOLD = ("_log.", "check(", "super().__init__", "fail_point")
"""Calls that log or check an invariant; omitting them changes no result."""


@dataclass(frozen=True)
class Mutant:
    """A change of one node of a module."""

    area: str
    module: str
    line: int
    number: int
    what: str


class _Changer(ast.NodeTransformer):
    """Counts the places that can change, and changes the given one."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted = wanted
        self.found: list[tuple[int, str]] = []

    def _is_it(self, node: ast.AST, what: str) -> bool:
        self.found.append((getattr(node, "lineno", 0), what))
        return len(self.found) - 1 == self.wanted

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for at, operator in enumerate(node.ops):
            other = COMPARE[type(operator)]
            text = ast.unparse(node)
            if self._is_it(node, f"{text}: {type(operator).__name__} -> {other.__name__}"):
                node.ops[at] = other()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        if self._is_it(node, f"{ast.unparse(node)}: -> {other.__name__}"):
            node.op = other()
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and self._is_it(node, f"{ast.unparse(node)}: without not"):
            return node.operand
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        other = ARITHMETIC.get(type(node.op))
        if other is not None and self._is_it(node, f"{ast.unparse(node)}: -> {other.__name__}"):
            node.op = other()
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            if self._is_it(node, f"{node.value} -> {not node.value}"):
                return ast.copy_location(ast.Constant(not node.value), node)
        elif isinstance(node.value, int) and self._is_it(node, f"{node.value} -> {node.value + 1}"):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        other = NAMES.get(node.id)
        if other is not None and self._is_it(node, f"{node.id} -> {other}"):
            node.id = other
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        for value in (True, False):
            if self._is_it(node, f"if {ast.unparse(node.test)}: -> if {value}"):
                node.test = ast.Constant(value)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if not isinstance(node.value, ast.Call) or ast.unparse(node).startswith(TOLD):
            return node
        self.generic_visit(node)
        return self._left_out(node)

    def visit_Continue(self, node: ast.Continue) -> ast.AST:
        return self._left_out(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return self._left_out(node)  # not into it: a message is text

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        return self._left_out(node)

    def visit_Delete(self, node: ast.Delete) -> ast.AST:
        return self._left_out(node)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        worth = node.value is not None and not isinstance(node.value, ast.Constant)
        if worth and self._is_it(node, f"{ast.unparse(node)}: -> None"):
            node.value = ast.Constant(None)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [self.visit(one) for one in node.body]  # not decorators, annotations, defaults
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        names = [getattr(target, "id", "") for target in node.targets]
        return node if names in (["__all__"], ["__slots__"]) else self.generic_visit(node)

    def _left_out(self, node: ast.stmt) -> ast.AST:
        if self._is_it(node, f"{ast.unparse(node)[:90]}: left out"):
            return ast.copy_location(ast.Pass(), node)
        return node


def path_of(area: str, module: str) -> Path:
    """Return the path of a module."""
    return SRC / "statelog" / area / f"{module}.py"


def mutants() -> Iterator[Mutant]:
    """Yield all mutants."""
    for area, modules in MODULES.items():
        for module in modules:
            changer = _Changer()
            changer.visit(ast.parse(path_of(area, module).read_text(encoding="utf-8")))
            for number, (line, what) in enumerate(changer.found):
                yield Mutant(area, module, line, number, what)


def give(mutant: Mutant) -> None:
    """Make this process import the mutant's module instead of the source."""
    path = path_of(mutant.area, mutant.module)
    tree = _Changer(mutant.number).visit(ast.parse(path.read_text(encoding="utf-8")))
    code = compile(ast.fix_missing_locations(tree), path, "exec")
    name = f"statelog.{mutant.area}.{mutant.module}".replace("/", ".")
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> object:
        return copy.copy(code) if fullname == name else original(self, fullname)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def run_tests(tests: list[str], log: Path) -> int:
    """Run tests in this process; return pytest's status."""
    import hypothesis
    import pytest

    original = hypothesis.settings.__init__

    def bounded(self: hypothesis.settings, *args: object, **options: object) -> None:
        if isinstance(options.get("max_examples"), int):
            options["max_examples"] = min(options["max_examples"], EXAMPLES)  # type: ignore[type-var]
        original(self, *args, **options)  # type: ignore[arg-type]

    hypothesis.settings.__init__ = bounded  # type: ignore[method-assign]
    os.environ["STATELOG_RECOVERY_SEEDS"] = "3"
    with log.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        return pytest.main(
            [
                *["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
                *["--hypothesis-seed=0", "-m", "not slow and not spark", *tests],
            ]
        )


def fate(mutant: Mutant, log: Path) -> str:
    """Run the tests against a mutant in a forked process; return the result."""
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            give(mutant)
            status = run_tests(FIRST.get(f"{mutant.area}/{mutant.module}", TESTS[mutant.area]), log)
        except BaseException:
            status = 1
        os._exit(int(status))
    until = time.monotonic() + LIMIT_S
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "timed out"
        time.sleep(0.02)


def preload() -> None:
    """Import the packages that every process needs, but nothing of statelog."""
    for name in (
        "hypothesis",
        "msgspec",
        "numpy",
        "pandas",
        "pyarrow.parquet",
        "pyspark",
        "pytest",
    ):
        __import__(name)
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)


def in_turn(found: list[Mutant], rng: random.Random) -> list[Mutant]:
    """Return the mutants in a random order that alternates between areas."""
    rng.shuffle(found)
    turns: dict[str, int] = {}
    order = []
    for one in found:
        turns[one.area] = turns.get(one.area, 0) + 1
        order.append((turns[one.area], one))
    return [one for _, one in sorted(order, key=lambda pair: pair[0])]


def main() -> None:
    """Run the sample of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1500)
    parser.add_argument("--only", default="", help="area/module, or area")
    parser.add_argument("--check", action="store_true", help="run the tests on the source as it is")
    parser.add_argument("--list", action="store_true", help="count the mutants and run none")
    options = parser.parse_args()
    chosen = [one for one in mutants() if f"{one.area}/{one.module}".startswith(options.only)]
    chosen = in_turn(chosen, random.Random(options.seed))
    out = io.TextIOWrapper(os.fdopen(os.dup(1), "wb", 0), write_through=True)
    for area in MODULES:
        count = sum(one.area == area for one in chosen)
        out.write(f"# {area}: {count} mutants in {len(MODULES[area])} modules\n")
    if options.list:
        return
    preload()
    until = time.monotonic() + options.seconds
    log = ROOT / "build" / f"mutant-{os.getpid()}.log"
    log.parent.mkdir(exist_ok=True)
    if options.check:
        for name, tests in {**TESTS, **FIRST}.items():
            began = time.monotonic()
            child = os.fork()
            if child == 0:
                os._exit(int(run_tests(tests, log)))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out.write(f"{name}: status {status}, {time.monotonic() - began:.1f} s\n")
        return
    for mutant in chosen:
        if time.monotonic() > until:
            break
        began = time.monotonic()
        said = fate(mutant, log)
        out.write(
            f"{said}\t{mutant.area}/{mutant.module}:{mutant.line}\t{mutant.what}\t"
            f"{time.monotonic() - began:.1f} s\n"
        )
    log.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
