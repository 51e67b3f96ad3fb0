"""
The rule of spelling, and one name for an idea in each face; `tools/face_names.py` reads the faces.

docs/reference/index.md has both for users.
"""

import re
import sys
from collections.abc import Callable

import pytest
from tests.house.sources import ROOT

import statelog as sl
import statelog.spark

sys.path.insert(0, str(ROOT / "tools"))
import face_names
from face_names import IDEAS, plain

SPELLINGS = {
    "python": re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*"),
    "command_line": re.compile(r"--[a-z0-9]+(-[a-z0-9]+)*|[A-Z]+(_[A-Z]+)*"),
    "spark": re.compile(r"[a-z]+([A-Z][a-z0-9]*)*"),
}
FUNCTIONS: dict[str, Callable[..., object]] = {
    "replay": statelog.spark.replay,
    "read": sl.LocationState.table,
    "get": sl.LocationState.get,
    "diff": sl.LocationState.changes,
    "sql": sl.LocationState.sql,
    "dead-letters": sl.LocationState.dead_letters,
    "side-outputs": sl.LocationState.side_output,
    "broadcasts": sl.LocationState.broadcast,
    "tag": sl.tag,
    "fork": sl.fork,
    "copy": sl.copy,
    "rewind": sl.rewind,
    "edit": sl.edit,
    "forget": sl.forget,
    "unfreeze": sl.unfreeze,
    "publish": sl.publish,
}
"""The function of each verb that has one."""
OF_OPEN = {"location", "operator"}
"""What the calls of a location get from `statelog.open`."""
NOT_IN_PYTHON = {
    "--json": "the result is an object",
    "--limit": "the result is a table",
    "--to": "the result is a table",
    "--overwrite": "the result is a table",
    "--parent": "the store option `parents`",
    "--new-encryption": "the store option `encryption` in new_storage_options",
    "--pdb": "the debugger of the caller",
    "--history": "`LocationState.history`",
    "--remove": "`untag`",
    "tag --apply": "`untag`",
    "--kind": "`untag`",
    "--delete-others": "the caller has all keys",
    "--follow": "a loop of the caller",
    "--interval": "a loop of the caller",
    "WORDS": "the variable and the key",
}
"""What a caller of Python has in place of a flag of one of these verbs."""


@pytest.mark.parametrize("face", SPELLINGS)
def test_each_name_is_spelled_by_the_rule(face: str) -> None:
    names = face_names.FACES[face]()
    assert [] == [name for name in names if not SPELLINGS[face].fullmatch(name)]


def test_what_stands_for_a_class_of_spark_is_spelled_as_spark() -> None:
    names = {
        name
        for where, function in face_names.callables()
        if face_names.is_like_spark(where)
        for name in face_names.arguments(function)
    }
    assert set() == {name for name in names if not SPELLINGS["spark"].fullmatch(name)}


def test_a_name_of_two_faces_is_an_idea_of_the_table() -> None:
    faces: dict[str, set[str]] = {}
    for face, read in face_names.FACES.items():
        for name in read():
            faces.setdefault(plain(name), set()).add(face)
    known = {plain(name) for idea in IDEAS for face in SPELLINGS for name in names_of(idea, face)}
    assert set() == {name for name, where in faces.items() if len(where) > 1} - known


@pytest.mark.parametrize("face", SPELLINGS)
def test_the_table_has_the_names_of_each_face(face: str) -> None:
    live = set(face_names.FACES[face]())
    listed = {name for idea in IDEAS for name in names_of(idea, face)}
    assert set() == listed - live, "names that the face does not have"
    known = {plain(name) for idea in IDEAS for each in SPELLINGS for name in names_of(idea, each)}
    assert set() == {name for name in live if plain(name) in known} - listed


@pytest.mark.parametrize("verb", FUNCTIONS)
def test_a_flag_is_the_argument_of_its_function(verb: str) -> None:
    arguments = {plain(name) for name in face_names.arguments(FUNCTIONS[verb])} | OF_OPEN
    flags = {name for name, verbs in face_names.command_line_names().items() if verb in verbs}
    flags = {flag for flag in flags if not {flag, f"{verb} {flag}"} & set(NOT_IN_PYTHON)}
    assert set() == {flag for flag in flags if not {plain(flag), f"{plain(flag)}s"} & arguments}


def names_of(idea: face_names.Idea, face: str) -> list[str]:
    """Return the names of an idea in a face."""
    text: str = getattr(idea, face)
    return text.split()
