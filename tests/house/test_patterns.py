"""
Names, phrases, parallel assignments and the type `Any`, which are going away: each may only become rarer.

`patterns.json` has how often each occurs. A count that rose fails; one that fell is written down
with `python -m tests.house.test_patterns`. See "Words" in docs/contributing/house-rules.md.
"""

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.house.sources import modules, pages, text_of, tree_of, write_figures

COUNTS = Path(__file__).with_name("patterns.json")

NAMES = (
    "one", "found", "own", "known", "wanted", "shown", "made", "each", "at", "given", "kept",
    "left", "held", "part", "done", "some", "mine",
)  # fmt: skip
"""Participles, pronouns and prepositions as names: they do not say what the thing is."""

PHRASES = (
    "any more", "anew", "nevertheless", "beside", "behind", "but for", "so many", "in turns",
    "that of", "those of", "by which", "of which", "is no", "are no", "has no", "have no",
    "needs no", "need no",
)  # fmt: skip
"""Pronouns for nouns, negated nouns, chains of relative clauses and rare words."""

ANY = re.compile(r"\bAny\b")
"""The type that turns the checks off: a user's own values and libraries without types need it."""


def assigned_names(tree: ast.Module) -> Iterator[str]:
    """Every name that is assigned or is a parameter; `_kept` and `self._kept` are `kept`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id.lstrip("_")
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr.lstrip("_")
        elif isinstance(node, ast.arg):
            yield node.arg


def packs_values(node: ast.AST) -> bool:
    """Say whether a statement assigns unrelated values to several targets; a swap relates them."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Tuple):
        return False
    targets = {ast.unparse(element) for element in target.elts}
    kinds = (ast.Name, ast.Attribute, ast.Subscript)
    read = {ast.unparse(inner) for inner in ast.walk(node.value) if isinstance(inner, kinds)}
    return targets.isdisjoint(read)


def count() -> dict[str, int]:
    """Return how often each name is assigned, and each phrase is written."""
    names = Counter(name for path in modules() for name in assigned_names(tree_of(path)))
    texts = [text_of(path) for path in (*modules(), *pages())]
    counts = {f"name {name}": names[name] for name in NAMES}
    for phrase in PHRASES:
        words = phrase.replace(" ", r"\s+")
        pattern = re.compile(rf"\b{words}\b(?!\s+longer\b)", re.IGNORECASE)
        counts[f"phrase {phrase}"] = sum(len(pattern.findall(text)) for text in texts)
    counts["parallel assignments"] = sum(
        packs_values(node) for path in modules() for node in ast.walk(tree_of(path))
    )
    counts["lines with Any"] = sum(
        bool(ANY.search(line)) for path in modules() for line in text_of(path).splitlines()
    )
    return counts


def test_no_name_or_phrase_becomes_more_frequent() -> None:
    """A count that fell is the new bound: python -m tests.house.test_patterns"""
    assert json.loads(COUNTS.read_text(encoding="utf-8")) == count()


if __name__ == "__main__":
    sys.exit(write_figures(COUNTS, count(), rises=False))
