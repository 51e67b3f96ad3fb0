"""
Render the public Python API as Markdown, from signatures and docstrings.

`inspect` is enough for that: statelog is imported for the other pages of `tools/reference.py`
anyway, and what a caller sees at run time is what the page shows.
"""

import ast
import enum
import inspect
import itertools
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType

SECTION = re.compile(
    r"^(Args|Returns|Raises|Yields|Blocks|Thread|Source|Attributes|Example|Note):[ ]*(.*)$"
)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
ENTRY = re.compile(r"^(\*{0,2}[\w, .*]+?)(?: \([^)]*\))?:\s+(.*)$")
WIDTH = 92
INTERNAL = ("after_fork", "refuse_calls", "groupby")
"""Methods that only other modules of statelog call, and second names of a method."""
SHOWN_MEMBERS = {
    "StateReader": [
        "checkpoint_id",
        "batch_id",
        "as_of_ms",
        "key_groups",
        "variables",
        "table",
        "batches",
        "keys",
    ]
}
"""What a caller uses of a class that other modules of statelog use too."""
RESULTS = frozenset(
    [
        "BatchOutcome",
        "BatchProgress",
        "CheckpointSummary",
        "Difference",
        "Fork",
        "ReadReport",
        "ReplayedStep",
        "SnapshotResult",
        "Tag",
        "WhatIf",
    ]
)
"""Results outside of `statelog.types`: read by callers, constructed by statelog."""
CONSTRUCTOR = frozenset({"Args", "Raises", "Blocks"})
PAGE = re.compile(r"\bdocs/(?:reference/)?((?:[\w-]+/)?[\w-]+\.md)")


def module_section(module: ModuleType, names: Iterable[str], level: int = 2) -> str:
    """Return the public names of a module, below the name that they are imported from."""
    parts = [f"{'#' * level} {module.__name__}\n\n"]
    parts += [entry(name, getattr(module, name), level + 1) for name in sorted(names)]
    return "".join(parts)


def entry(name: str, value: object, level: int) -> str:
    """Return the section of one public name."""
    head = f"{'#' * level} {name}\n\n"
    if inspect.isclass(value):
        return head + "".join(_class_parts(name, value, level))
    if inspect.isroutine(value):
        return head + code(signature(name, value)) + docstring(value)
    shown = annotation_text(ADDRESS.sub("", repr(value)))
    text = escaped(constant_text(name))
    return head + code(f"{name} = {shown}" if len(shown) < WIDTH else name) + text


def constant_text(name: str) -> str:
    """Return the text that follows the definition of a constant in the sources, or ""."""
    for module in [value for key, value in sorted(sys.modules.items()) if "statelog" in key]:
        if name not in getattr(module, "__annotations__", {}) and name not in vars(module):
            continue
        body = ast.parse(inspect.getsource(module)).body
        for definition, after in itertools.pairwise(body):
            targets = getattr(definition, "targets", [getattr(definition, "target", None)])
            if [name] == [getattr(target, "id", None) for target in targets]:
                text = getattr(getattr(after, "value", None), "value", "")
                return f"{text}\n\n" if isinstance(text, str) and text else ""
    return ""


def _class_parts(name: str, cls: type, level: int) -> Iterator[str]:
    bases = [base.__name__ for base in cls.__bases__ if base is not object]
    kind = f"class {name}({', '.join(bases)})" if bases else f"class {name}"
    if is_result(name, cls):
        yield code(kind) + docstring(cls).replace("**Args:**", "**Attributes:**")
    elif _is_made_elsewhere(cls):
        yield code(kind) + docstring(cls, leave_out=CONSTRUCTOR)
    else:
        yield code(kind if _is_plain(cls) else signature(name, cls, prefix="class "))
        yield docstring(cls)
    if issubclass(cls, enum.Enum):
        yield f"**Members:** {', '.join(f'`{member.name}`' for member in cls)}.\n\n"
    found = dict(members(cls))
    if name in SHOWN_MEMBERS:
        found = {member: found[member] for member in SHOWN_MEMBERS[name]}
    like_spark = [member for member, function in found.items() if _is_like_spark(function)]
    if like_spark:
        shown = ", ".join(f"`{member}`" for member in sorted(like_spark))
        yield f"Methods with the arguments and effect of Spark's: {shown}.\n\n"
    for member, function in found.items():
        if member in like_spark:
            continue
        shown = f"{name}.{member}"
        if isinstance(function, property):
            yield f"{'#' * (level + 1)} `{shown}`\n\n" + docstring(function)
        else:
            yield f"{'#' * (level + 1)} `{shown}`\n\n"
            yield code(signature(member, function)) + docstring(function)


def is_result(name: str, cls: type) -> bool:
    """Return whether callers read a class and never construct it."""
    return name in RESULTS or name in getattr(sys.modules.get("statelog.types"), "__all__", ())


def _is_made_elsewhere(cls: type) -> bool:
    """Whether the docstring of a class names the call that returns an instance."""
    text = inspect.getdoc(cls) or ""
    return "do not construct it" in text or "\nMade by `" in text


def _is_like_spark(value: object) -> bool:
    """Whether the docstring of a method does no more than to name Spark's."""
    return (inspect.getdoc(value) or "").startswith("See Spark's")


def _is_plain(cls: type) -> bool:
    """Whether a caller never calls a class, or its arguments are not described."""
    special = getattr(cls, "_is_protocol", False) or getattr(cls, "__total__", None) is not None
    is_described = "\nArgs:\n" in (inspect.getdoc(cls) or "")
    return bool(special or not is_described or issubclass(cls, enum.Enum | BaseException | dict))


def members(cls: type) -> Iterator[tuple[str, Callable[..., object] | property]]:
    """Yield the public methods and properties that statelog defines and describes for a class."""
    seen: set[str] = set()
    for home in cls.__mro__:
        if not home.__module__.startswith("statelog"):
            continue
        for name, raw in vars(home).items():
            value = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
            described = inspect.getdoc(value) if value is not None else None
            is_member = inspect.isfunction(value) or isinstance(value, property)
            if name.startswith("_") or name in seen or not is_member or not described:
                continue
            if described.startswith("Not after a stateful operator"):  # it only raises
                continue
            if name in INTERNAL or (name == "facts" and cls is not home):  # of all errors
                continue
            seen.add(name)
            yield name, value


def signature(name: str, value: Callable[..., object], prefix: str = "") -> str:
    """Return a signature, one parameter to a line where it is long."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return f"{prefix}{name}(...)"
    parameters = [
        each for each in found.parameters.values() if each.name not in ("self", "cls", "_cls")
    ]
    texts: list[str] = []
    for index, each in enumerate(parameters):
        before = parameters[index - 1].kind if index else None
        if each.kind is each.KEYWORD_ONLY and before not in (
            each.KEYWORD_ONLY,
            each.VAR_POSITIONAL,
        ):
            texts.append("*")
        texts.append(_parameter(each))
    empty = found.return_annotation is inspect.Signature.empty or prefix
    result = "" if empty else f" -> {annotation_text(found.return_annotation)}"
    line = f"{prefix}{name}({', '.join(texts)}){result}"
    if len(line) <= WIDTH:
        return line
    inner = "".join(f"    {text},\n" for text in texts)
    return f"{prefix}{name}(\n{inner}){result}"


def _parameter(parameter: inspect.Parameter) -> str:
    text = parameter.name
    text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(
        parameter.kind, ""
    ) + text
    if parameter.annotation is not parameter.empty:
        text += f": {annotation_text(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += " = " if ":" in text else "="
        text += _default(parameter.default)
    return text


def _default(value: object) -> str:
    shown = repr(value)
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return "..." if shown.startswith("<") or len(shown) > 60 else shown


def other_types(entries: Iterable[tuple[str, object]], described: Iterable[str]) -> str:
    """Return a table of statelog's types in the signatures of some entries that no entry describes."""
    known = set(described)
    rows: dict[str, str] = {}
    for name, value in entries:
        functions = [value] if inspect.isroutine(value) else []
        if inspect.isclass(value):
            found = dict(members(value))
            functions = [
                member.fget if isinstance(member, property) else member
                for member in (found[key] for key in SHOWN_MEMBERS.get(name, found))
                if not _is_like_spark(member)
            ]
            if not _is_plain(value) and not _is_made_elsewhere(value):
                functions.append(value.__init__)  # type: ignore[misc]
        for function in functions:
            for word in _words(function):
                if word not in known and word not in rows and (text := _type_row(word, function)):
                    rows[word] = text
    return "| Type | What it is |\n|---|---|\n" + "".join(rows[word] for word in sorted(rows))


def _words(function: object) -> set[str]:
    """Return the names in the annotations of a function."""
    annotations = getattr(function, "__annotations__", {}).values()
    return {word for value in annotations for word in re.findall(r"\b[A-Z]\w+", str(value))}


def _type_row(name: str, function: object) -> str:
    """Return the row of a class or an alias of statelog that a function's annotation names, or ""."""
    home = getattr(function, "__globals__", {})
    keys = sorted(key for key in sys.modules if key.startswith("statelog."))
    modules = [vars(sys.modules[key]) for key in keys if not key.startswith("statelog.cli")]
    for namespace in [home, *modules]:  # what a module imports for type checkers alone is elsewhere
        value = namespace.get(name)
        origin = getattr(value, "__module__", "")
        if inspect.isclass(value) and not str(origin).startswith("statelog"):
            return ""
        if inspect.isclass(value):
            first = (inspect.getdoc(value) or "").partition("\n\n")[0]
            return f"| `{name}` | {escaped(' '.join(first.split()))} |\n"
        if typing.get_origin(value) is not None:
            shown = annotation_text(inspect.formatannotation(value)).replace("|", "\\|")
            return f"| `{name}` | `{shown}` |\n"
    return ""


def annotation_text(annotation: object) -> str:
    """Return an annotation without the packages of its types."""
    annotation = getattr(annotation, "__forward_arg__", annotation)  # of a named tuple
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:statelog|typing|collections\.abc|pyspark)\.(?:[a-z_]\w*\.)*", "", text)


def code(text: str) -> str:
    """Return a block of code; the language `py` says that the test of its page does not run it."""
    return f"```py\n{text}\n```\n\n"


def docstring(value: object, leave_out: Iterable[str] = ()) -> str:
    """Return a docstring in Google's form as Markdown, without some of its sections."""
    text = inspect.getdoc(value)
    if not text or (inspect.isclass(value) and text.startswith(f"{value.__name__}(")):
        return ""
    body: list[str] = []
    parts: list[str] = []
    lines = text.splitlines()
    while lines:
        found = SECTION.match(lines[0])
        if found is None:
            body.append(escaped(lines.pop(0)))
            continue
        title, rest = found[1], found[2]
        lines.pop(0)
        inner: list[str] = []
        while lines and _continues(lines[0], rest, inner):
            inner.append(lines.pop(0))
        if title not in leave_out:
            parts.append(_section(title, rest, inspect.cleandoc("\n".join(["", *inner]))))
    return "\n".join([*body, ""]).rstrip() + "\n\n" + "".join(parts)


def _continues(line: str, rest: str, before: list[str]) -> bool:
    """Return whether a line belongs to the section that the lines before it are of."""
    if not line.strip() or line.startswith(" "):
        return True
    # The paragraph of a section that begins in the line of its title is not indented.
    return bool(rest and SECTION.match(line) is None and (not before or before[-1].strip()))


def arguments_of(value: object) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the section `Args` of a docstring."""
    text = inspect.getdoc(value) or ""
    _, _, rest = text.partition("\nArgs:\n")
    inner = re.split(r"\n(?=\S)", rest)[0]
    return _entries(inspect.cleandoc("\n" + inner))


def _section(title: str, rest: str, inner: str) -> str:
    if title in ("Args", "Raises", "Attributes") and inner:
        items = "".join(
            f"- `{name}`: {escaped(text)}\n" if name else f"- {escaped(text)}\n"
            for name, text in _entries(inner)
        )
        return f"**{title}:**\n\n{items}\n"
    if title == "Example":
        return code(inner.rstrip())
    text = " ".join(f"{rest} {inner}".split())
    return f"**{title}:** {escaped(text)}\n\n"


def _entries(inner: str) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the entries of a section, their continuation lines joined."""
    items: list[tuple[str, list[str]]] = []
    for line in inner.splitlines():
        found = ENTRY.match(line)
        if found and not line.startswith(" "):
            items.append((found[1], [found[2]]))
        elif line.strip():
            if not items:
                items.append(("", []))
            items[-1][1].append(line.strip())
    yield from ((name, " ".join(texts)) for name, texts in items)


def escaped(line: str) -> str:
    """Escape angle brackets outside of code, and make names of pages links."""
    pieces = line.split("`")
    return "`".join(
        PAGE.sub(_link, piece.replace("<", "&lt;")) if index % 2 == 0 else piece
        for index, piece in enumerate(pieces)
    )


def _link(found: re.Match[str]) -> str:
    """Return the link to a page, from a page of docs/reference."""
    path = found[1] if "/" not in found[1] else f"../{found[1]}"
    name = found[1].rpartition("/")[2].removesuffix(".md").replace("-", " ")
    return f"[{name}]({path})"
