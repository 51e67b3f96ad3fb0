"""Changes of bytes and of trees, drawn from a seed."""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Callable
from typing import Any

Mutate = Callable[[random.Random, bytes], bytes]

INTEGERS = (
    0, 1, -1, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1,
)  # fmt: skip
_LAYOUTS = ("<B", "<H", ">H", "<I", ">I", "<q", ">q")
_DEEP = 3_000


def raw(rng: random.Random, data: bytes) -> bytes:
    """Return *data* with one to four changes of its bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(_CHANGES)(rng, changed)
    return bytes(changed)


def _flip(rng: random.Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _number(rng: random.Random, data: bytearray) -> None:
    layout = rng.choice(_LAYOUTS)
    size = struct.calcsize(layout)
    if len(data) >= size:
        number = rng.choice((*INTEGERS, len(data), len(data) + 1, rng.getrandbits(63)))
        unsigned = (number & ((1 << 8 * size) - 1)).to_bytes(
            size, "big" if ">" in layout else "little"
        )
        at = rng.randrange(len(data) - size + 1)
        data[at : at + size] = unsigned


def _span(rng: random.Random, data: bytearray, longest: int = 200) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.randrange(longest))


def _remove(rng: random.Random, data: bytearray) -> None:
    start, end = _span(rng, data)
    del data[start:end]


def _repeat(rng: random.Random, data: bytearray) -> None:
    start, end = _span(rng, data)
    data[end:end] = data[start:end] * rng.choice((1, 2, 50))


def _insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randrange(1, 40))


def _fill(rng: random.Random, data: bytearray) -> None:
    start, end = _span(rng, data)
    data[start:end] = rng.choice((b"\x00", b"\xff", b"[", b"\x91")) * (end - start)


def _cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _extend(rng: random.Random, data: bytearray) -> None:
    data += rng.choice((rng.randbytes(9), bytes(100), data[:200]))


_CHANGES = (
    _flip, _flip, _number, _number, _number, _remove, _repeat, _insert, _fill, _cut, _extend,
)  # fmt: skip


def tree(rng: random.Random, value: Any) -> Any:
    changed = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        changed = _changed_node(rng, changed)
    return changed


def _changed_node(rng: random.Random, root: Any) -> Any:
    places: list[tuple[Any, Any]] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        inner = (
            node.items()
            if isinstance(node, dict)
            else enumerate(node)
            if isinstance(node, list)
            else ()
        )
        for name, child in inner:
            places.append((node, name))
            waiting.append(child)
    if not places:
        return _other(rng, root)
    parent, name = rng.choice(places)
    action = rng.randrange(10)
    if action == 0:
        del parent[name]
    elif action == 1 and isinstance(parent, list):
        parent[name:name] = [parent[name]] * rng.choice((1, 3, 2000))
    elif action == 2 and isinstance(parent, dict):
        parent[rng.choice(("", "x", "$timers", "\x1b[2J"))] = parent[name]
    elif action == 3:
        parent[name] = copy.deepcopy(rng.choice(places)[0])  # a node of another place
    else:
        parent[name] = _other(rng, parent[name])
    return root


def _other(rng: random.Random, value: Any) -> Any:
    """Return another value, more often of the same type."""
    if isinstance(value, bytes) and rng.random() < 0.8:
        return raw(rng, value)
    if isinstance(value, str) and rng.random() < 0.5:
        return raw(rng, value.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    if isinstance(value, int) and rng.random() < 0.6:
        return rng.choice((value + 1, value - 1, -value, *INTEGERS, -(2**63)))
    deep: Any = []
    for _ in range(rng.choice((1, 70, 500))):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    others = (
        None, True, -1, 2**63 - 1, 2**64 - 1, 1.5, -0.0, 1e300, "", "x" * 5000, "../../etc", "/etc/passwd",
        "\u2028\x1b", "a\x00b", "²", [], {}, [None] * _DEEP, {"a": 1}, deep, rng.choice(INTEGERS),
    )  # fmt: skip
    return rng.choice(others)
