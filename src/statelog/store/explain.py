"""
Explain an error from a store in one line, with advice.

Servers answer with pages of XML, and obstore adds internal details; of these, a message needs one
code and one sentence.
"""

from __future__ import annotations

import re
from typing import Final

from statelog.redaction import redacted

_CODE: Final = re.compile(r"<Code>\s*([^<]+?)\s*</Code>")
_MESSAGE: Final = re.compile(r"<Message>\s*([^<]+?)\s*</Message>", re.DOTALL)
_WRAPPERS: Final = re.compile(r"^(?:Generic \w+ error: |Object at location .*? not found: )+")
_REASON_MAX: Final = 400

_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_IDENTITY: Final = (
    "/latest/api/token",
    "/latest/meta-data",
    "169.254.",
    "metadata.google.internal",
    "/metadata/identity/",
)
"""Marks of the address that tells a machine its own identity."""
_HINTS: Final = (
    (
        _NO_BUCKET,
        "statelog does not create buckets or containers: create it, or correct the URL",
    ),
    (  # before the rights: that address, and a proxy before it, may answer 401 or 403
        _IDENTITY,
        "no credentials were found, so the machine's own identity was tried: set them as "
        "environment variables or store options, in this process",
    ),
    (
        (
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "AuthenticationFailed",
            "InvalidClientTokenId",
            "ExpiredToken",
            "401 Unauthorized",
        ),
        "check the credentials: environment variables or store options, in this process",
    ),
    (
        ("AccessDenied", "403 Forbidden", "PermissionDenied"),
        "the credentials lack permissions here: reading, writing, listing and deleting are required",
    ),
    (
        ("PermanentRedirect", "AuthorizationHeaderMalformed", "301 Moved"),
        "the bucket is in a different region: set AWS_REGION or the option 'region'",
    ),
    (
        ("builder error", "URL scheme is not allowed"),
        "the endpoint is plain http, which was not allowed: set 'allow_http' to true",
    ),
    (
        ("error sending request", "dns error", "Connection refused", "timed out", "timeout"),
        "the endpoint cannot be reached: check its address and the network",
    ),
    (
        ("conditional put is disabled",),
        "commits require conditional puts: omit the option 'conditional_put'",
    ),
    (
        ("os error 13", "Permission denied"),
        "this process is not allowed to read and write there: check the folders' owner and mode",
    ),
    (("os error 20", "Not a directory"), "a part of the path is a file, not a folder"),
    (
        (
            "os error 28",
            "No space left",
            "os error 122",
            "Disk quota exceeded",
            "os error 27",
            "File too large",
        ),
        "the disk or quota is full; nothing of this object is visible",
    ),
    (("os error 30", "Read-only file system"), "the file system is mounted read-only"),
    (
        ("Operation not permitted (os error 1)", "os error 95"),
        "the file system does not support hard links, which put-if-absent needs",
    ),
)


def one_line(error: BaseException) -> str:
    """Describe the cause of *error* in one line, with a hint if there is one."""
    text = redacted(str(error)).split("\n\nDebug source", 1)[0]
    code = _CODE.search(text)
    message = _MESSAGE.search(text)
    before_xml = text.split("<?xml", 1)[0].split("<Error>", 1)[0]
    reason = " ".join(_WRAPPERS.sub("", before_xml).split()).rstrip(":, ")
    if code:
        reason += f": {code[1]}"
    if message:
        reason += f": {' '.join(message[1].split())}"
    if len(reason) > _REASON_MAX:
        reason = reason[: _REASON_MAX - 3] + "..."
    hint = hint_for(text)
    return f"{reason or type(error).__name__}" + (f" ({hint})" if hint else "")


def hint_for(text: str) -> str:
    """Return advice for an error with this text, or ""."""
    for marks, hint in _HINTS:
        if any(mark in text for mark in marks):
            return hint
    return ""


def is_about_identity(text: str) -> bool:
    """Return whether an error arose while requesting the machine's own identity."""
    return any(mark in text for mark in _IDENTITY)


def is_missing_bucket(error: BaseException) -> bool:
    """Return whether a bucket is missing; obstore reports a missing object as "not found" too."""
    text = str(error)
    return any(mark in text for mark in _NO_BUCKET)
