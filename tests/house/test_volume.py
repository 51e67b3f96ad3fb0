"""
How much a person must read: lines of code, files, what two modules import, and what the engine names.

`volume.json` has the figures. A figure that grew by more than a hundredth fails: below it,
branches that add a few lines do not wait for each other. After a cut
`python -m tests.house.test_volume` writes the lower figures; until then the test warns.
See "Volume" in docs/contributing/house-rules.md.
"""

import ast
import io
import json
import re
import sys
import tokenize
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.house.sources import SRC, modules, text_of, tree_of, write_figures

FIGURES = Path(__file__).with_name("volume.json")
COMMAND = "python -m tests.house.test_volume"

SLACK = 1.01

ROOTS = ("statelog.spark.api", "statelog.changelog.storage")
"""The module of each face of statelog: a reader of it reads what it imports."""

LAZY = frozenset({"statelog", "statelog.spark"})
"""Packages that import a name at its first use: what they list is not loaded with them."""

FEATURES = {
    "bad records": r"(?i:bad.?record|dead.?letter)|(?<![a-z])[oO]n_?[eE]rror\b|[mM]ax_?[eE]rrors|MAX_ERRORS"
    r"|[Ee]rror_?[Pp]olicy|[Ff]rozen (?:key|mark)|[Ff]rozen_?(?:NAME|Mark|MARK)|FROZEN|un_?freeze(?!\()",
    "recordings": r"(?<!class _)(?i:recordings?\b|recording_)",
    "side outputs": r"(?i:side.?outputs?\b|side_sink)",
    "broadcasts": r"[Bb]roadcasts?(?! variable)\b|BROADCASTS|BROADCAST_SOURCES|_broadcast\b",
    "forks": r"(?<!\w)[Ff]orks?\b|fork_|\bFORK|_fork\b",
}
"""The features that the engine must not know, and the words that name them."""
_WORDS = re.compile("|".join(FEATURES.values()))

CORE = ("spark/driver", "spark/worker", "checkpoint", "state")
ENGINE = ("changelog", "checkpoint", "state", "spark")
SEAMS = frozenset({"spark/extension_table.py", "spark/query/face.py"})
"""The tables of the seams, which name extensions."""

NO_FEATURE = re.compile(
    r"broadcast_vars|broadcastVars|BroadcastThreshold|as a broadcast|a broadcast variable|broadcast variables"
    r"|function(?:'s| has) broadcasts|broadcasts = list|if broadcasts:"
    r"|gc\.unfreeze|after_fork|over a fork|may fork|_Recording\b"
)
"""Lines with such a word for something of Python or Spark: its broadcasts, its processes."""

NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(text: str) -> int:
    """Count the lines with a token that is neither a comment nor part of a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if is_text(statement):
                lines.difference_update(range(statement.lineno, statement.end_lineno + 1))
    return len(lines)


def is_text(statement: ast.stmt) -> bool:
    """Say whether a statement is a docstring, of a module, a function, a constant or a field."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def imported_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Every name that a module imports when it is loaded: not for types, and not in a function."""
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from imported_names(node.body)
            yield from imported_names(node.orelse)
        elif isinstance(node, ast.Try):
            yield from imported_names(node.body)


def closure(imports: Mapping[str, set[str]], root: str) -> set[str]:
    """Return the modules that are loaded with *root*, itself included."""
    loaded: set[str] = set()
    waiting = [root]
    while waiting:
        module = waiting.pop()
        if module not in loaded and module not in LAZY:
            loaded.add(module)
            waiting += imports[module]
    return loaded


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def module_of(name: str, paths: Mapping[str, Path]) -> str:
    """Return the module that has an imported name; empty for another package's."""
    while name and name not in paths:
        name = name.rpartition(".")[0]
    return name


def names_a_feature(line: str) -> bool:
    return _WORDS.search(line) is not None and NO_FEATURE.search(line) is None


def lines_that_name_a_feature(folders: Sequence[str]) -> list[str]:
    """
    Return the lines of folders of `src` that name a feature.

    A line counts once if one of the words of `FEATURES` is in it, be it code, docstring or comment,
    unless it is one of `NO_FEATURE`.  The tables of the seams do not count.
    """
    lines: list[str] = []
    for path in modules():
        name = path.relative_to(SRC).as_posix().removeprefix("statelog/")
        if name in SEAMS or not name.startswith(tuple(f"{folder}/" for folder in folders)):
            continue
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if names_a_feature(line):
                lines.append(f"{name}:{number}: {line.strip()}")
    return lines


def measure() -> dict[str, int]:
    """Return the figures as they are now."""
    paths = {module_name(path): path for path in modules()}
    code = {name: code_lines(text_of(path)) for name, path in paths.items()}
    imports = {
        name: {module_of(each, paths) for each in imported_names(tree_of(path).body)} - {""}
        for name, path in paths.items()
    }
    figures = {"files": len(paths), "code lines": sum(code.values())}
    for root in ROOTS:
        loaded = closure(imports, root)
        figures[f"modules loaded by {root}"] = len(loaded)
        figures[f"code lines loaded by {root}"] = sum(code[name] for name in loaded)
    figures["lines of driver, worker, checkpoint and state that name a feature"] = len(
        lines_that_name_a_feature(CORE)
    )
    figures["lines of the engine that name a feature"] = len(lines_that_name_a_feature(ENGINE))
    return figures


def test_the_volume_does_not_grow() -> None:
    before = json.loads(FIGURES.read_text(encoding="utf-8"))
    now = measure()
    assert before.keys() == now.keys(), f"write the figures: {COMMAND}"
    grown = {
        name: f"{before[name]} -> {now[name]}" for name in now if now[name] > SLACK * before[name]
    }
    assert {} == grown, (
        "the code grew: cut something, or give the reason in the commit and write the "
        f"figures by `{COMMAND}`"
    )
    changed = {name: f"{before[name]} -> {now[name]}" for name in now if now[name] != before[name]}
    if any(now[name] < before[name] for name in now):
        warnings.warn(f"the code shrank: write the figures by `{COMMAND}`: {changed}", stacklevel=1)


def test_the_measure_leaves_comments_and_docstrings_out() -> None:
    text = (
        '"""Text."""\n\n# why\nA = (\n    1,\n)\n"""The\nconstant."""\n\n\ndef f():\n    "Text."\n'
    )
    assert 4 == code_lines(text)


def test_the_measure_follows_only_what_loading_a_module_imports() -> None:
    text = """
import a.b
from c import d
if TYPE_CHECKING:
    import not_loaded
else:
    import e
try:
    from f import g
except ImportError:
    pass
def h():
    import not_loaded
"""
    assert ["a.b", "c", "c.d", "e", "f", "f.g"] == list(imported_names(ast.parse(text).body))
    imports = {"a": {"b", "statelog"}, "b": {"a", "c"}, "c": set[str](), "statelog": {"d"}}
    assert {"a", "b", "c"} == closure(imports, "a")


def test_a_line_names_a_feature_once_or_not_at_all() -> None:
    naming = (
        "if policy.on_error is OnError.FREEZE:",
        "# the rows of side outputs",
        "from statelog.extensions.recordings.format import decode_file",
        'PATHS.broadcast("")',
        "a checkpoint that a fork reads",
        "dead letters and frozen keys",
    )
    assert [] == [line for line in naming if not names_a_feature(line)]
    others = (
        "except CorruptionError as error:",
        "gc.unfreeze()",
        "the function uses broadcast variables",
        "StoreError: This process inherited the storage over a fork.",
        "@dataclass(frozen=True)",
    )
    assert [] == [line for line in others if names_a_feature(line)]


if __name__ == "__main__":
    sys.exit(write_figures(FIGURES, measure(), rises=True))
