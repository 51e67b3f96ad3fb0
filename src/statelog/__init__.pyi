"""statelog: durable, log-structured keyed state."""

__version__: str

from statelog.checkpoint.retained import Tag as Tag
from statelog.errors import BatchGapError as BatchGapError
from statelog.errors import CheckpointDamagedError as CheckpointDamagedError
from statelog.errors import CheckpointError as CheckpointError
from statelog.errors import CheckpointNotFoundError as CheckpointNotFoundError
from statelog.errors import CheckpointSubsumedError as CheckpointSubsumedError
from statelog.errors import ClosedError as ClosedError
from statelog.errors import CorruptionError as CorruptionError
from statelog.errors import FencedError as FencedError
from statelog.errors import IncompatibleFormatError as IncompatibleFormatError
from statelog.errors import ProcessorError as ProcessorError
from statelog.errors import QueryActiveError as QueryActiveError
from statelog.errors import StatelogError as StatelogError
from statelog.errors import StoreError as StoreError
from statelog.errors import UnavailableError as UnavailableError
from statelog.errors import UsageError as UsageError
from statelog.extensions.operations.copy_location import copy as copy
from statelog.extensions.operations.edit_keys import edit as edit
from statelog.extensions.operations.edit_keys import unfreeze as unfreeze
from statelog.extensions.operations.forget_key import forget as forget
from statelog.extensions.operations.fork import Fork as Fork
from statelog.extensions.operations.fork import fork as fork
from statelog.extensions.operations.rewind import rewind as rewind
from statelog.extensions.operations.savepoints import tag as tag
from statelog.extensions.operations.savepoints import tags as tags
from statelog.extensions.operations.savepoints import untag as untag
from statelog.extensions.publish.publisher import publish as publish
from statelog.extensions.read.location_state import LocationState as LocationState
from statelog.extensions.read.location_state import open as open
from statelog.extensions.read.replica import Replica as Replica
from statelog.metrics import Metrics as Metrics
from statelog.model import KeyGroupRange as KeyGroupRange
from statelog.store import open_store as open_store
