"""
Options: plain, typed, with their units in the name or the type.

Flink's keys are accepted by `from_mapping`, under both of Flink's prefixes and without any.
Source: Flink, FsStateChangelogOptions; the defaults are those of 2.3.0.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from statelog.errors import InvalidOptionsError

KIB: Final = 1024
MIB: Final = 1024 * KIB
_PREFIXES: Final = ("state.changelog.dstl.dfs.", "state.backend.changelog.dstl.dfs.", "dstl.dfs.")
_RETRY_POLICIES: Final = ("none", "fixed", "exponential")
_ALIASES: Final = {"download_local_cache_idle_timeout_ms": "download_local_cache_idle_timeout"}
_SIZE: Final = re.compile(r"\s*(\d+)\s*([a-z]*)\s*", re.IGNORECASE)
_SIZE_UNITS: Final = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib", "kibibytes"), KIB),
    **dict.fromkeys(("m", "mb", "mib", "mebibytes"), MIB),
    **dict.fromkeys(("g", "gb", "gib", "gibibytes"), 1024 * MIB),
    **dict.fromkeys(("t", "tb", "tib", "tebibytes"), 1024 * 1024 * MIB),
}
_DURATION: Final = re.compile(r"\s*(\d+)\s*([a-zµ]*)\s*", re.IGNORECASE)
_DURATION_UNITS_US: Final = {
    **dict.fromkeys(("us", "µs", "micro", "micros", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
}
_ISO_DURATION: Final = re.compile(
    r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogOptions:
    """
    How changes are batched, uploaded, retried and held back.

    Args:
        base_path: Root of the changelog files, where it is not given in code.
        compression_enabled: Snappy-frame the files.
        preemptive_persist_threshold_bytes: Changes a writer holds (cut or not) before it uploads
            them without being asked; 0 uploads every append.
        batch_persist_delay: Longest time an upload waits for others to share its file.
        batch_persist_size_threshold_bytes: Waiting bytes, of all writers, that are uploaded at
            once.
        batch_fixed_delay: Wait for the delay even if no upload is running, as Flink does.
        upload_buffer_size_bytes: Flink's stream buffer.  Accepted for its sake and without
            effect: a file is put whole, so there is no stream to buffer.
        upload_num_threads: Uploads at the same time.
        discard_num_threads: Deletions at the same time.
        upload_max_in_flight_bytes: Bytes queued or uploading, of all writers; above it callers
            wait.
        upload_retry_policy: "fixed", "exponential" or "none".
        upload_timeout: Age at which an attempt gets a rival; zero for never.
        upload_max_attempts: Attempts of one upload, the first included.
        upload_next_attempt_delay: Delay after an error; for "exponential" the first one.
        backpressure_timeout: Longest wait for upload capacity.
        download_local_cache_idle_timeout: Life of a downloaded file after its last use, where a
            storage is given directories to keep such files in.

    Raises:
        InvalidOptionsError: A value is out of its range, or two contradict each other.
    """

    base_path: str | None = None
    compression_enabled: bool = False
    preemptive_persist_threshold_bytes: int = 5 * MIB
    batch_persist_delay: dt.timedelta = dt.timedelta(milliseconds=10)
    batch_persist_size_threshold_bytes: int = 10 * MIB
    batch_fixed_delay: bool = False
    upload_buffer_size_bytes: int = MIB
    upload_num_threads: int = 5
    discard_num_threads: int = 1
    upload_max_in_flight_bytes: int = 100 * MIB
    upload_retry_policy: str = "fixed"
    upload_timeout: dt.timedelta = dt.timedelta(seconds=1)
    upload_max_attempts: int = 3
    upload_next_attempt_delay: dt.timedelta = dt.timedelta(milliseconds=500)
    backpressure_timeout: dt.timedelta = dt.timedelta(minutes=10)
    download_local_cache_idle_timeout: dt.timedelta = dt.timedelta(minutes=10)

    def __post_init__(self) -> None:
        zero = dt.timedelta(0)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, dt.timedelta) and value < zero:
                raise InvalidOptionsError(f"{field.name} is {value}; a duration is never negative")
            if isinstance(value, int) and value < 0:
                raise InvalidOptionsError(f"{field.name} is {value}; it must not be negative")
        for name in ("upload_num_threads", "discard_num_threads", "upload_max_attempts"):
            if getattr(self, name) < 1:
                raise InvalidOptionsError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.upload_max_in_flight_bytes < 1:
            raise InvalidOptionsError("upload_max_in_flight_bytes must be at least 1")
        if self.batch_persist_size_threshold_bytes > self.upload_max_in_flight_bytes:
            raise InvalidOptionsError(
                f"batch_persist_size_threshold_bytes ({self.batch_persist_size_threshold_bytes}) "
                f"exceeds upload_max_in_flight_bytes ({self.upload_max_in_flight_bytes}): so many "
                "bytes could never wait; lower the one or raise the other"
            )
        if self.upload_retry_policy not in _RETRY_POLICIES:
            raise InvalidOptionsError(
                f"unknown retry policy {self.upload_retry_policy!r}; known: "
                + ", ".join(_RETRY_POLICIES)
            )

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> ChangelogOptions:
        """
        Build options from text settings.

        Keys may be Flink's ("state.changelog.dstl.dfs.batch.persist-delay", the deprecated
        "dstl.dfs..." too) or the field names.  Sizes may be numbers of bytes or text such as
        "5 mb" (binary units); durations `timedelta`, or text such as "10 ms" or "PT0.01S", a bare
        number meaning milliseconds.

        Raises:
            InvalidOptionsError: A key is unknown or given twice, or a value cannot be understood.
        """
        values: dict[str, Any] = {}
        for key, value in settings.items():
            field = _field_of(key)
            if field.name in values:
                raise InvalidOptionsError(f"option {key!r} sets {field.name} a second time")
            values[field.name] = _parse(key, field, value)
        return cls(**values)


def _field_of(key: str) -> dataclasses.Field[Any]:
    name = key
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    name = name.replace(".", "_").replace("-", "_")
    name = _ALIASES.get(name, name)
    fields = {field.name: field for field in dataclasses.fields(ChangelogOptions)}
    if name in fields:
        return fields[name]
    if f"{name}_bytes" in fields:
        return fields[f"{name}_bytes"]
    near = difflib.get_close_matches(name, fields, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InvalidOptionsError(f"unknown option {key!r}{hint}", key=key)


def _parse(key: str, field: dataclasses.Field[Any], value: Any) -> Any:
    default = field.default
    if isinstance(default, bool):
        return _parse_bool(key, value)
    if isinstance(default, dt.timedelta):
        return parse_duration(value, key=key)
    if isinstance(default, int):
        return parse_size(value, key=key)
    if not isinstance(value, str):
        raise InvalidOptionsError(f"option {key!r} is {value!r}; it must be text", key=key)
    return value.lower() if field.name == "upload_retry_policy" else value


def _parse_bool(key: str, value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise InvalidOptionsError(f"option {key!r} is {value!r}; it must be true or false", key=key)
    return text == "true"


def parse_size(value: Any, *, key: str = "size") -> int:
    """
    Return a number of bytes (or a plain count) from a number or from text such as "5 mb".

    Raises:
        InvalidOptionsError: *value* is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise InvalidOptionsError(
            f"option {key!r} is {value!r}; it must be a number, or text such as '5 mb'", key=key
        )
    return int(match[1]) * _SIZE_UNITS[match[2].lower()]


def parse_duration(value: Any, *, key: str = "duration") -> dt.timedelta:
    """
    Return a duration from a `timedelta`, milliseconds, "10 ms" or "PT0.01S".

    Raises:
        InvalidOptionsError: *value* is none of these.
    """
    if isinstance(value, dt.timedelta):
        return value
    text = str(value).strip() if isinstance(value, str | int) else ""
    if (match := _DURATION.fullmatch(text)) and match[2].lower() in _DURATION_UNITS_US:
        return dt.timedelta(microseconds=int(match[1]) * _DURATION_UNITS_US[match[2].lower()])
    iso = _ISO_DURATION.fullmatch(text)
    if iso is None or not any(iso.groups()):
        raise InvalidOptionsError(
            f"option {key!r} is {value!r}; it must be a duration such as '10 ms' or 'PT0.01S'",
            key=key,
        )
    days, hours, minutes, seconds = (float(group or 0) for group in iso.groups())
    return dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
