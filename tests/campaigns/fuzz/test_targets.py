"""Bytes of any content, also with checksums that hold, are refused in so many words."""

import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.campaigns.fuzz.samples import checkpoint
from tests.campaigns.fuzz.targets import ALLOWED, TARGETS
from tests.support.processes.script import run_script

from statelog.format.checkpoint_record import decode_record, encode_record
from statelog.model import Timeline
from statelog.model.checkpoint import TimelineEnd

GIB = 1 << 30


def small_record() -> bytes:
    timeline = Timeline("b8", 2, (TimelineEnd("b8", 0, 1),))
    return encode_record(checkpoint(attempt="a7", timeline=timeline))


@pytest.mark.parametrize("target", TARGETS)
@given(data=st.binary(max_size=300))
@example(data=b"\xff" * 40)
@example(data=b"\x00\x00\x00\x01\x7f\xff\xff\xff" * 4)
def test_any_bytes_are_read_or_refused(target: str, data: bytes) -> None:
    try:
        TARGETS[target](data)
    except ALLOWED:
        return


@given(position=st.integers(0, 10**6), mask=st.integers(1, 255), cut=st.integers(0, 40))
def test_a_damaged_record_is_refused_or_read(position: int, mask: int, cut: int) -> None:
    data = bytearray(small_record())
    data[position % len(data)] ^= mask
    try:
        decode_record(bytes(data[: len(data) - cut]))
    except ALLOWED:
        return


def kib(data: bytes) -> bytes:
    return data + bytes(1024 - len(data))


def record_that_claims(length: int) -> bytes:
    """Return a record of the usual header, which ends in the length of what is compressed."""
    record = small_record()
    return record[:4] + struct.pack(">I", length) + record[8:]


TWO_GIB = 2 * GIB - 1
FORGED = {
    # one key group with so many changes; one change of so many bytes; so many groups
    "changes": ("change_set", kib(struct.pack(">iii", 1, TWO_GIB, 5))),
    "value": ("change_set", kib(struct.pack(">iiii", 1, 5, 1, TWO_GIB))),
    "groups": ("change_set", kib(struct.pack(">i", TWO_GIB))),
    "plain file": ("plain_file", kib(struct.pack(">iiii", 1, 5, 1, TWO_GIB))),
    "snappy block": (
        "frames",
        kib(b"\x00" + (900).to_bytes(3, "little") + b"abcd" + b"\xff\xff\xff\xff\x07"),
    ),
    "sets in the index": ("forged_index", kib(struct.pack(">I", 0xFFFFFFFF))),
    "record": ("checkpoint_record", kib(record_that_claims(TWO_GIB))),
    "record within bounds": ("checkpoint_record", record_that_claims(GIB)),
}

CHILD = """
import sys
from tests.campaigns.fuzz.samples import limit_memory
from tests.campaigns.fuzz.targets import ALLOWED, TARGETS
from tests.support.processes.script import run_script
data = bytes.fromhex(sys.argv[2])
limit_memory()
try:
    TARGETS[sys.argv[1]](data)
except ALLOWED as error:
    print("refused:", error)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_length_allocates_nothing(name: str) -> None:
    """A kilobyte that claims two gigabytes is refused within 256 MiB of address space."""
    target, data = FORGED[name]
    assert run_script(CHILD, target, data.hex()).startswith("refused:")
