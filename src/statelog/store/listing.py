"""A listing that continues after a page that failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import obstore

from statelog.store.client import Client
from statelog.store.location import kind_of

_PAGE: Final = 1000
_EXPRESS_BUCKET: Final = "--x-s3"


def lists_in_order(url: str) -> bool:
    """Return whether the store lists names in ascending order, after a given name if asked to."""
    bucket = url.partition("://")[2].partition("/")[0]
    kind = kind_of(url)
    return kind is not None and kind.lists_in_order and not bucket.endswith(_EXPRESS_BUCKET)


class Listing:
    """
    The objects below a folder, page by page.

    After an error the next page continues behind the last name.  Where a store does not list in
    order, the listing begins again and the names that were returned are left out.

    Args:
        prefix: The folder, "" for the root.
        resumable: Whether a listing can begin behind a name (`lists_in_order`).

    Thread: one at a time.
    """

    def __init__(self, prefix: str, *, resumable: bool) -> None:
        self._prefix = prefix or None
        self._resumable = resumable
        self._pages: Iterator[Sequence[obstore.ObjectMeta]] | None = None
        self._last: str | None = None
        self._returned: set[str] = set()

    def next_page(self, client: Client) -> Sequence[obstore.ObjectMeta] | None:
        """Return the next objects, None at the end; raises what obstore raises."""
        try:
            if self._pages is None:
                self._pages = iter(
                    obstore.list(client, self._prefix, offset=self._last, chunk_size=_PAGE)
                )
            page = next(self._pages, None)
        except BaseException:
            self._pages = None
            raise
        if page is None:
            return None
        if self._resumable:
            self._last = page[-1]["path"] if page else self._last
            return page
        page = [meta for meta in page if meta["path"] not in self._returned]
        self._returned.update(meta["path"] for meta in page)
        return page
