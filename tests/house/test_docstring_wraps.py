"""The formatter of docstrings wraps what is broken, and leaves everything else as it is."""

import pytest
from tools.docstrings import LIMIT, formatted

LONG = "A sentence that goes on for longer than a line may, because nobody looked at its end before"
TABLE = '''
def f() -> None:
    """
    Draw the states.

        empty  ──▶  filled
          ▲            │
          └────────────┘

    ::

        a = 1
        b = 2

    so that one can see it:

        with it.now() as first:
            first.go()

    Example:
        statelog first
        statelog second

    | column | meaning |
    |---|---|
    | `a` | the first |
    """
'''


def module(*lines: str) -> str:
    """Return a module with a function that has these lines in its docstring."""
    body = "\n".join(f"    {line}".rstrip() for line in lines)
    return f'def f() -> None:\n    """\n    Do it.\n\n{body}\n    """\n'


def lines_of(text: str) -> list[str]:
    """Return the lines below the summary, without the quotes."""
    return [line.strip() for line in text.split("\n")[4:-2]]


CASES = {
    "a long line is wrapped": (
        [f"{LONG} it was committed.", "The end."],
        [f"{LONG} it", "was committed.  The end."],
    ),
    "a line that ends early is joined with the next": (
        ["A line that", "ends too early.", "", "The next paragraph."],
        ["A line that ends too early.", "", "The next paragraph."],
    ),
    "a short last line and a full line stay": ([LONG, "it was."], [LONG, "it was."]),
}


@pytest.mark.parametrize(("lines", "expected"), CASES.values(), ids=CASES)
def test_lines_are_filled_and_no_word_is_lost(lines: list[str], expected: list[str]) -> None:
    text = module(*lines)
    result = formatted(text)
    assert max(map(len, result.split("\n"))) <= LIMIT
    assert result.split() == text.split()
    assert lines_of(result) == expected


@pytest.mark.parametrize(
    ("entry", "indent"), [("- ", 6), ("Source: ", 4), ("1. ", 7)], ids=["item", "remark", "number"]
)
def test_the_lines_of_an_entry_hang_below_its_text(entry: str, indent: int) -> None:
    text = module(f"{entry}{LONG} it was committed.", f"{entry}The second.")
    result = formatted(text).split("\n")
    assert result[5].startswith(" " * indent) and result[5][indent].isalpha()
    assert result[6] == f"    {entry}The second."


def test_an_argument_hangs_in_its_section() -> None:
    text = module("Args:", f"    name: {LONG} it was committed.", "    other: The other.")
    result = formatted(text).split("\n")
    assert result[4] == "    Args:"
    assert result[6].startswith(" " * 12) and not result[6].startswith(" " * 13)
    assert result[7] == "        other: The other."


def test_drawings_code_and_tables_stay() -> None:
    assert formatted(TABLE) == TABLE


def test_the_text_of_a_constant_is_wrapped() -> None:
    result = formatted(f'LIMIT = 1\n"""\nThe most.\n\n{LONG} it was committed.\n"""\n')

    assert result.split("\n")[4:6] == [f"{LONG} it was", "committed."]


def test_a_second_run_changes_nothing() -> None:
    text = module(f"{LONG} it was.", "Short.", "", f"- {LONG} it", "  was.", f"- {LONG} it was.")

    assert formatted(formatted(text)) == formatted(text)
