"""
Wrap docstrings to the limit of a line.

    python tools/docstrings.py [--check] src    (`--check` only names the files)

A paragraph is wrapped again if a line of it is too long, or ends although the next word would fit
well.  Tables, drawings, code and the first line, a summary, stay as they are.
"""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

LIMIT, SLACK = 100, 24
"""The length of a line; a line that could be longer by more than the slack is a broken wrap."""
LABEL = re.compile(r"[-*] |\d+[.)] |[A-Z][A-Za-z]+: |\*\*")
"""The beginning of a list item, or of a named remark such as `Source:`."""
ARGUMENT = re.compile(r"\*{0,2}\w+(?:, \w+)*: ")
"""The beginning of an argument or an error in a section, which is indented."""
CODE_AFTER = ("", "Example:", "Examples:")
LITERAL = re.compile(r"[^.:;!?)`'\"\s] {2,}\S|[^.\s] {3,}\S|[│─┌┐└┘├┤▲▼▶◀]|>>>|(?m:^) *[|+#]")
"""Columns, drawings, doctests: what is aligned."""


def docstrings(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each text of a module, class, function or constant."""
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno - 1, (value.end_lineno or 0) - 1


def indent_of(line: str) -> int:
    """Return the number of blanks before the text."""
    return len(line) - len(line.lstrip())


def begins(line: str, base: int) -> bool:
    """Say whether a line begins a list item, a remark or an argument."""
    text = line.lstrip()
    return bool(LABEL.match(text) or (indent_of(line) > base and ARGUMENT.match(text)))


def paragraphs(lines: Sequence[str], base: int) -> Iterator[list[str]]:
    """Yield paragraphs: an indentation for the first line, and an indentation for the others."""
    block: list[str] = []
    for line in lines:
        is_blank = not line.strip() or not "".join(block).strip()
        deeper = indent_of(line) - (indent_of(block[-1]) if block else 0)
        fits = not deeper or (deeper > 0 and len(block) == 1 and begins(block[0], base))
        is_entry = begins(line, base) and (not block or indent_of(line) <= indent_of(block[0]))
        if block and (is_blank or is_entry or not fits):
            yield block
            block = []
        block.append(line)
    if block:
        yield block


def is_broken(lines: Sequence[str]) -> bool:
    """Say whether a line is too long, or ends far before the limit although a word follows."""
    words = [line.split(maxsplit=1)[0] for line in lines[1:]]
    early = any(len(f"{a} {b}") < LIMIT - SLACK for a, b in zip(lines, words, strict=False))
    return early or any(len(line) > LIMIT for line in lines)


def wrapped(lines: Sequence[str], base: int) -> list[str]:
    """Return a paragraph in lines up to the limit; a word that is longer has a line of its own."""
    others = " " * indent_of(lines[-1])
    if len(lines) == 1 and (item := re.match(r" *([-*] |\d+[.)] )", lines[0])):
        others += " " * len(item[1])
    elif len(lines) == 1 and len(others) > base and begins(lines[0], base):
        others += "    "
    stop = " " if re.search(r"\. [A-Z]", "".join(lines)) else "  "
    text = re.sub(r"\n *", " ", re.sub(r"\.\n *", f".{stop}", "\n".join(lines).strip()))
    result = [" " * indent_of(lines[0])]
    for gap, word in re.findall(r"( *)(\S+)", text):
        if result[-1].strip() and len(result[-1]) + len(gap) + len(word) > LIMIT:
            result.append(others + word)
        else:
            result[-1] += (gap if result[-1].strip() else "") + word
    return result


def formatted(text: str) -> str:
    """Return a module with its docstrings wrapped."""
    lines = text.split("\n")
    for start, end in sorted(docstrings(text), reverse=True):
        base = indent_of(lines[start])
        # The first line is the summary, alone or after the quotes; the last one has the quotes.
        body = start + 2 if lines[start].strip().endswith('"""') and end > start else start + 1
        result: list[str] = []
        is_code = False
        for block in paragraphs(lines[body:end], base):
            if is_text := bool(block[0].strip()):
                before = result[-1].strip() if result else "-"
                is_code = indent_of(block[0]) > base and (is_code or before in CODE_AFTER)
            keeps = is_code or not is_text or LITERAL.search("\n".join(block))
            result += block if keeps or not is_broken(block) else wrapped(block, base)
        lines[body:end] = result
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Wrap the docstrings below some folders; 1 if `--check` finds some to wrap."""
    changed = False
    for path in (path for name in arguments for path in sorted(Path(name).rglob("*.py"))):
        text = path.read_text(encoding="utf-8")
        if (result := formatted(text)) != text:
            changed = True
            print(path)
            if "--check" not in arguments:
                path.write_text(result, encoding="utf-8")
    return int("--check" in arguments and changed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
