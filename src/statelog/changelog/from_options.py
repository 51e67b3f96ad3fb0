"""Build parts of a changelog from options."""

from __future__ import annotations

import os

from statelog.arguments import folder, path, refused
from statelog.core.retry_policy import RetryPolicy
from statelog.errors import InvalidOptionsError
from statelog.options import ChangelogOptions
from statelog.store.api import ObjectStore
from statelog.store.opening import open_store


def checked_options(options: ChangelogOptions | None) -> ChangelogOptions:
    """Return *options*, or the defaults for None."""
    if options is None:
        return ChangelogOptions()
    if not isinstance(options, ChangelogOptions):
        expected = "ChangelogOptions (ChangelogOptions.from_mapping makes them from Flink's keys)"
        raise refused("options", expected, options, InvalidOptionsError)
    return options


def checked_job_id(job_id: str) -> str:
    """Return the folder of a job, "" for none."""
    return folder(job_id, "job_id", error=InvalidOptionsError)


def store_of(
    location: str | os.PathLike[str] | ObjectStore | None, options: ChangelogOptions
) -> ObjectStore:
    """
    Return the store at *location*.

    It may be a store already; None takes the base path of *options*.
    """
    place = options.base_path if location is None else location
    if place is None:
        raise InvalidOptionsError(
            "a changelog storage needs a location: pass base_path, or set changelog.base-path"
        )
    if isinstance(place, str | os.PathLike):
        return open_store(path(place, "base_path", error=InvalidOptionsError))
    if not callable(getattr(place, "put", None)):
        raise refused("base_path", "a path, a URL or an ObjectStore", place, InvalidOptionsError)
    return place


def retry_policy(options: ChangelogOptions) -> RetryPolicy:
    """Return the retry policy that *options* describe."""
    timeout_s = options.upload_timeout.total_seconds()
    delay_s = options.upload_next_attempt_delay.total_seconds()
    if options.upload_retry_policy == "none":
        return RetryPolicy.none()
    if options.upload_retry_policy == "exponential":
        return RetryPolicy.exponential(options.upload_max_attempts, timeout_s, delay_s)
    return RetryPolicy.fixed(options.upload_max_attempts, timeout_s, delay_s)
