"""
The names that users type, read from the faces: Python, command line, options of Spark.

`IDEAS` has the names that are in more than one face.  `tools/reference.py` writes them into
docs/reference/index.md, and `tests/house/test_names.py` compares them with what is read here.
"""

import enum
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass

import typer
from pyspark.sql import GroupedData

import statelog
import statelog.spark
import statelog.spark.functions
import statelog.testing
import statelog.types
from statelog.cli import main as cli
from statelog.extensions.spark_source.options import SourceOptions
from statelog.options.declaration import options_of
from statelog.spark.query.settings import SETTINGS

LIKE_SPARK = (
    "StatefulProcessor",
    "StatefulProcessorHandle",
    "ColumnarHandle",
    "ValueState",
    "ListState",
    "MapState",
    "TimerValues",
    "ExpiredTimerInfo",
    "StatefulStream",
    "StatefulStreamWriter",
    "ProcessorTester",
)
"""Classes that stand for a class of Spark, and are spelled as that class throughout."""
MODULES = (statelog, statelog.spark, statelog.spark.functions, statelog.testing, statelog.types)
"""The modules of the rule; `statelog.changelog` has Flink's names."""
BUILTINS = ("copy", "open")
"""Public names of `statelog` that its star import leaves out."""


@dataclass(frozen=True)
class Idea:
    """
    What is named, and its names in each face; empty where the face does not have it.

    Several names of a face have a space between them: one and several of a thing.
    """

    meaning: str
    python: str = ""
    command_line: str = ""
    spark: str = ""


IDEAS = (
    Idea("where the state of a query is stored", "location", "LOCATION --location"),
    Idea(
        "the same, if there is also a checkpointLocation",
        "state_location",
        "--state-location",
        "stateLocation",
    ),
    Idea("a folder, as `load` and `save` of Spark name it", "path", "", "path"),
    Idea("a location that a call creates", "new_location", "NEW_LOCATION"),
    Idea(
        "the checkpointLocation of a query",
        "checkpoint_location",
        "CHECKPOINT_LOCATION --checkpoint-location",
    ),
    Idea(
        "a checkpointLocation that a call creates",
        "new_checkpoint_location",
        "--new-checkpoint-location",
    ),
    Idea("options of the store's client", "storage_options", "", "storageOptions"),
    Idea(
        "a checkpoint: an id, latest, earliest, a tag or a time",
        "checkpoint",
        "--checkpoint",
        "checkpoint",
    ),
    Idea("only changes after this checkpoint", "since", "--since", "since"),
    Idea("two checkpoints that are compared", "before after", "BEFORE AFTER"),
    Idea("the number of a micro-batch", "batch_id", "--batch-id", "batchId"),
    Idea("an operator, by its name", "operator", "--operator", "operator"),
    Idea("a state variable", "variable variables", "VARIABLE --variable", "variable"),
    Idea("the values of the key columns", "key keys", "KEY"),
    Idea("key groups to read", "key_groups", "", "keyGroups"),
    Idea("columns, by name", "columns", "", "columns"),
    Idea("a tag, side output or broadcast table, by name", "name", "NAME"),
    Idea("the kind of a tag", "kind", "--kind"),
    Idea("a text for people", "comment", "--comment"),
    Idea("make the changes", "apply", "--apply"),
    Idea("how long a query must have been idle", "min_idle", "--min-idle"),
    Idea("delete bytes at once", "now", "--now"),
    Idea("state to set, and keys to delete", "set delete", "--set --delete"),
    Idea("fork without the position of the sources", "state_only", "--state-only"),
    Idea("copy the objects", "copy", "--copy"),
    Idea("number of objects copied at the same time", "parallelism", "--parallelism"),
    Idea("a processor", "processor", "--processor"),
    Idea("values of a change, or of state", "value values", "--values"),
    Idea("an SQL statement", "statement", "STATEMENT"),
    Idea("let a statement use files", "allow_files", "--allow-files"),
    Idea("a table to publish to", "iceberg delta", "--iceberg --delta"),
    Idea("properties of a catalog", "catalog_options", "--catalog-option"),
    Idea("versions of a table to retain", "retain", "--retain"),
    Idea("time between two checks", "interval_s", "--interval"),
)


def callables() -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield each public function, constructor and method by its name, such as `statelog.fork`."""
    for module in MODULES:
        names = [*module.__all__, *(BUILTINS if module is statelog else ())]
        for name in names:
            value = getattr(module, name)
            where = f"{module.__name__}.{name}"
            if not inspect.isclass(value):
                yield where, value
                continue
            special = getattr(value, "_is_protocol", False) or hasattr(value, "__total__")
            if not (special or issubclass(value, enum.Enum | BaseException | tuple)):
                yield where, value
            for member, raw in vars(value).items():
                function = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
                if inspect.isfunction(function) and not member.startswith("_"):
                    yield f"{where}.{member}", function


def arguments(function: Callable[..., object]) -> list[str]:
    """Return the names of the arguments of a function."""
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "cls", "_cls") and parameter.kind is not parameter.VAR_KEYWORD
    ]


def is_like_spark(where: str) -> bool:
    """Return whether a callable is a class that stands for one of Spark's, or a method of it."""
    return any(part in LIKE_SPARK for part in where.split("."))


def is_result(where: str, function: object) -> bool:
    """Return whether a callable is the constructor of a result, which a caller only reads."""
    return inspect.isclass(function) and is_dataclass(function)


def names_of_spark() -> set[str]:
    """Return the arguments of Spark's own operator."""
    return set(arguments(GroupedData.transformWithState))


def python_names() -> dict[str, list[str]]:
    """Return where each argument is, of the calls that are not like Spark's."""
    found: dict[str, list[str]] = {}
    for where, function in callables():
        if not is_like_spark(where) and not is_result(where, function):
            for name in set(arguments(function)) - names_of_spark():
                found.setdefault(name, []).append(where)
    return found


def command_line_names() -> dict[str, list[str]]:
    """Return the verbs of each argument and option of the command line."""
    found: dict[str, list[str]] = {}
    group = typer.main.get_command(cli.verbs)
    for verb, command in group.commands.items():  # type: ignore[attr-defined]
        for parameter in command.params:
            if parameter.name != "help":
                for name in options_of_parameter(parameter):
                    found.setdefault(name, []).append(verb)
    return found


def options_of_parameter(parameter: typer.core.TyperArgument | typer.core.TyperOption) -> list[str]:
    """Return the names of a parameter of a verb, as a user types them."""
    if parameter.param_type_name == "argument":
        return [str(parameter.name).upper()]
    names = [*parameter.opts, *parameter.secondary_opts]
    return [name for name in names if name.startswith("--") and not name.startswith("--no-")]


def spark_names() -> dict[str, list[str]]:
    """Return where each option of Spark is: a setting of a query, or an option of the format."""
    found = {name: ["setting"] for name in SETTINGS if "." not in name}
    for option in options_of(SourceOptions):
        found.setdefault(option.name, []).append("format")
    return found


def plain(name: str) -> str:
    """Return a name of any face in one spelling; of Python without its unit."""
    if name.startswith("--") or name.isupper():
        return name.lower().lstrip("-").replace("-", "_")
    if any(letter.isupper() for letter in name):
        return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()
    return name.removesuffix("_s")


FACES = {"python": python_names, "command_line": command_line_names, "spark": spark_names}
"""What reads the names of each face."""
