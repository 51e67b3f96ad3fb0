"""
Hide secrets in URLs and settings before text is shown.

Users write credentials into URLs: `s3://key:secret@bucket`, `sftp://user:password@host`, a query
string with a signed token; and into settings: `host=example password=secret`, `{'token':
'secret'}`.  Every text for people (errors, logs, what the command line prints, the `url` of a
store) passes through here: the errors in their constructor, the stores in `url`.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"

_PLAIN_SCHEMES: Final = ("file", "memory")
"""Their names are shown as they are: `?` and `@` are ordinary characters of a file name."""
_KEY_SCHEMES: Final = ("s3", "s3a", "s3n", "gs", "gcs")
_BUCKET_SCHEMES: Final = (*_KEY_SCHEMES, "http", "https")
"""The text before `@` is a credential even without a password.

Elsewhere it is the name of a user, or of a container (`abfs://container@account...`).
"""
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/{1,2}([^\s'\"<>`]+)")
_PORT: Final = re.compile(r"[^:@/]*:\d+/")
_PARAMETER: Final = re.compile(
    r"([?&;](?:sig|signature|token|[a-z_-]*(?:access|secret|account|session|sas|api)[a-z_-]*"
    r"(?:key|token|id)|x-amz-[a-z-]+|x-goog-[a-z-]+|password|passwd|pwd|credentials?)=)[^&;\s'\"]+",
    re.IGNORECASE,
)
_SETTING: Final = re.compile(
    r"(?<![\w./-])(?P<quote>['\"]?)(?P<key>[\w.-]*(?:password|passwd|pwd|passphrase|secret|token|credential"
    r"|private[_.-]?key|access[_.-]?key|api[_.-]?key|account[_.-]?key|jaas[_.-]config)[\w.-]*)(?P=quote)"
    r"(?P<mark>\s*=\s*|(?<=['\"])\s*:\s*|:(?=[^\s:/]))"
    r"(?:\"[^\"]*\"|'[^']*'|[^\s&;,'\")}\]]+)",
    re.IGNORECASE,
)
"""
A setting as libpq, a mapping of Python and JSON write it.

In a path it is a folder of a partition.
"""


def redacted(text: str) -> str:
    """
    Return *text* without the secrets of URLs and settings in it: `s3://***@bucket/path?***`, `password=***`.

    Args:
        text: A URL, a path or a setting, or a text that contains some; unchanged without secrets.
    """
    if ":" not in text and "=" not in text:
        return text
    text = _PARAMETER.sub(rf"\1{HIDDEN}", _URL.sub(_shown, text))
    return _SETTING.sub(rf"\g<quote>\g<key>\g<quote>\g<mark>{HIDDEN}", text)


def without_secrets(error: BaseException) -> BaseException:
    """
    Return *error*, or an error of the same class with the secrets removed from its text.

    For the cause of another error, which a traceback prints too.
    """
    text = str(error)
    clean = redacted(text)
    if clean == text:
        return error
    try:
        return type(error)(clean)
    except TypeError:  # its class takes other arguments
        return RuntimeError(f"{type(error).__name__}: {clean}")


def _shown(match: re.Match[str]) -> str:
    scheme = match[1].lower()
    rest = match[2]
    if scheme in _PLAIN_SCHEMES:
        return match[0]
    begin = match[0][: len(match[0]) - len(rest)]
    before, mark, _ = rest.partition("?")
    return begin + _without_user(scheme, before) + (mark and f"?{HIDDEN}")


def _without_user(scheme: str, rest: str) -> str:
    """Return the part of a URL after the slashes, without user or key and password."""
    host, _, _ = rest.partition("/")
    if "@" in host:
        user = host.rpartition("@")[0]
        is_secret = ":" in user or scheme in _BUCKET_SCHEMES
    else:  # a secret key may contain slashes; an `@` in the path of a server with a port is none
        user = rest.rpartition("@")[0]
        is_secret = ":" in host and (scheme in _KEY_SCHEMES or not _PORT.match(user))
    return f"{HIDDEN}@{rest[len(user) + 1 :]}" if user and is_secret else rest
