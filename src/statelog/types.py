"""Types that statelog's functions accept or return, for annotations."""

from statelog.extensions.broadcasts.stored import BroadcastVersion
from statelog.extensions.operations.copy_location import CopyProgress, CopyReport
from statelog.extensions.operations.edit_keys import EditCounts, EditReport
from statelog.extensions.operations.forget_key import ForgetReport
from statelog.extensions.operations.key_traces import KeyTrace
from statelog.extensions.operations.rewind import RewindReport
from statelog.extensions.publish.publisher import PublishReport
from statelog.extensions.read.held_state import KeyVersion
from statelog.extensions.read.replica import ReplicaStatus
from statelog.extensions.side_outputs.stored import KeptSideOutput
from statelog.state.reader.state_reader import StateReader
from statelog.state.schema import StateDescriptor

__all__ = [
    "BroadcastVersion",
    "CopyProgress",
    "CopyReport",
    "EditCounts",
    "EditReport",
    "ForgetReport",
    "KeptSideOutput",
    "KeyTrace",
    "KeyVersion",
    "PublishReport",
    "ReplicaStatus",
    "RewindReport",
    "StateDescriptor",
    "StateReader",
]
