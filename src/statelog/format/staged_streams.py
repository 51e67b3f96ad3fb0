"""
The section `OUTP` of a `_metadata` object: staged rows, as a msgpack list of Arrow IPC streams.

The format is documented in docs/reference/formats/checkpoint_metadata.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from statelog.errors import CorruptionError
from statelog.format.bounds import decode_msgpack
from statelog.format.buffers import Buffer

_decoder: Final = msgspec.msgpack.Decoder(list[bytes])


def encode_streams(streams: Sequence[Buffer]) -> bytes:
    """Return the section with these streams."""
    return msgspec.msgpack.encode(streams)


def decode_streams(section: Buffer | None, *, where: str = "") -> list[bytes]:
    """
    Return the streams in a section; none without one.

    Args:
        section: The body of the section.
        where: Name of the object, for messages.

    Raises:
        CorruptionError: It is not a list of streams.
    """
    if section is None:
        return []
    try:
        return decode_msgpack(section, _decoder)
    except msgspec.DecodeError as error:
        raise CorruptionError(
            f"damaged staged rows in {where or 'a checkpoint'}: {error}", path=where
        ) from error
