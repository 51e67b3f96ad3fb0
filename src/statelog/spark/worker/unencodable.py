"""Find the values of state that cannot be encoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from statelog.errors import ProcessorError
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.values import UNENCODABLE
from statelog.state.heap import Overlay
from statelog.state.kinds import Key


def unencodable_values(
    codec: OperatorCodec, overlays: Mapping[int, Overlay], batch_id: int
) -> Iterator[tuple[int, Key, ProcessorError]]:
    """Yield key group, key and error of each value that does not fit its type."""
    for key_group, overlay in overlays.items():
        for state, deltas in zip(codec.states, overlay, strict=True):
            for key, delta in deltas.items():
                try:
                    state.batch(state.operations({key: delta}))
                except UNENCODABLE as unfit:
                    schema = state.descriptor.value_schema
                    error = ProcessorError(
                        f"state {state.descriptor.name!r} of key {codec.key.thaw(key)!r:.200} in batch "
                        f"{batch_id} holds a value that does not fit "
                        f"({schema.to_string(show_field_metadata=False)}): {unfit}. Nothing of this "
                        "batch was committed",
                        batch_id=batch_id,
                        key=repr(key),
                        state=state.descriptor.name,
                        key_group=key_group,
                    )
                    error.__cause__ = unfit
                    yield key_group, key, error
