"""Fill the tables of names in docs/reference/flink-map.md, from those that the errors read."""

import re
from pathlib import Path

from blocks import filled

from statelog import changelog as cl
from statelog.flink_names import EXPLAINED, PUBLIC_NAMES, RENAMED

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "flink-map.md"


def page() -> str:
    """Return the page with its tables made anew; all other text is written by hand."""
    return filled(PAGE, _names)


def _names(block: str) -> str:
    assert block == "names", block
    classes = "".join(
        f"| `{flink}` | {_code(text, cl.__all__)} |\n" for flink, text in PUBLIC_NAMES.items()
    )
    members = "".join(
        f"| `{_camel_case(name.replace('PoolFuture', 'CompletableFuture'))}` | {text} |\n"
        for name, text in EXPLAINED.items()
    )
    renamed = "".join(f"| `{_camel_case(flink)}` | `{name}` |\n" for flink, name in RENAMED.items())
    head = "|---|---|\n"
    return (
        f"| Class of Flink | `cl.` |\n{head}{classes}"
        f"\n| Member | Here |\n{head}{members}"
        f"\n| Argument or getter | Here |\n{head}{renamed}"
    )


def _code(text: str, names: list[str]) -> str:
    """Return a text as code if it begins with a public name, as prose otherwise."""
    code, comma, rest = text.partition(", with ")
    return f"`{code}`{comma}{rest}" if re.split(r"\W", text)[0] in names else text


def _camel_case(name: str) -> str:
    return re.sub(r"_([a-z])", lambda word: word[1].upper(), name)
