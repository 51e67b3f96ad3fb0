"""Settings that cannot work on Spark Connect, with what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

from statelog.errors import UsageError
from statelog.spark.query.delivery import Delivery
from statelog.spark.query.settings import BESIDE_CHECKPOINT, QuerySettings


def refuse_callbacks(arguments: Mapping[str, object]) -> None:
    """
    Reject functions and objects that the server would have to call in the client.

    Raises:
        UsageError: One is given.
    """
    for name in ("onProgress", "metrics"):
        if arguments.get(name) is not None:
            raise UsageError(
                f"{name} does not work on Spark Connect: micro-batches run in the server, which "
                "cannot call an object of this process. Leave it out, and read the same figures "
                "from the query that start() returns (query.lastBatch, query.recentBatches), or "
                "add a StreamingQueryListener to spark.streams for Spark's own"
            )


def refuse_direct(settings: QuerySettings) -> None:
    """
    Reject direct delivery.

    Raises:
        UsageError: It is set.
    """
    if settings.delivery is Delivery.DIRECT:
        raise UsageError(
            "the delivery direct does not work on Spark Connect: tasks answer by an accumulator, "
            "which Connect does not have. Use delivery='staged', which is the default and delivers "
            "exactly once"
        )


def refuse_relative(checkpoint: str, settings: QuerySettings) -> None:
    """
    Reject relative paths, which client and server resolve differently.

    The word `checkpoint` as a stateLocation is not a path: the state is in the checkpointLocation.

    Raises:
        UsageError: The checkpointLocation or a state location is a relative path.
    """
    of_state = (settings.state_location, settings.base_location)
    paths = [checkpoint, *(each for each in of_state if each != BESIDE_CHECKPOINT)]
    for path in paths:
        if path and not path.startswith("/") and ":" not in path:
            raise UsageError(
                f"{path!r} is a relative path, which means another folder on the server of Spark "
                "Connect than here: give an absolute path, or a URL"
            )
