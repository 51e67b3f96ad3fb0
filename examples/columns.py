"""
The rules of deduplicate.py, fraud.py, latest.py and sessions.py over whole columns.

Pass a processor to `transform_with_state` as those programs pass theirs.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statelog.spark import ColumnarProcessor

TINY, LARGE, MINUTE_MS = 1.0, 500.0, 60_000
GAP_MS = 30 * 60 * 1000
DAY_MS = 24 * 60 * 60 * 1000
NEVER = -1


class FirstOfEachId(ColumnarProcessor):
    """Let the first payment of each id through; its flag expires after a day."""

    def init(self, handle):
        self.seen = handle.getColumnState("seen", "seen boolean", ttlDurationMs=DAY_MS)

    def process(self, keys, rows, times):
        new = ~self.seen.exists(keys)
        self.seen.put(keys.take(new), {"seen": np.ones(new.sum(), bool)})
        yield rows.take(keys.starts[new])


class Latest(ColumnarProcessor):
    """Keep the newest version of each customer."""

    def init(self, handle):
        self.version = handle.getColumnState("version", "version long")

    def process(self, keys, rows, times):
        versions = rows["version"].to_numpy()
        order = np.lexsort((-versions, keys.row_keys()))  # the first newest row of each key
        newest = order[keys.starts]
        known = self.version.get(keys)["version"].fill_null(-(2**63)).to_numpy()
        later = versions[newest] > known
        self.version.put(keys.take(later), {"version": versions[newest[later]]})
        yield rows.take(newest[later])


class FraudRule(ColumnarProcessor):
    """Detect a large payment within a minute of a tiny one: the row before it, or what the state has."""

    def init(self, handle):
        self.timers = handle.timers
        self.armed = handle.getColumnState("armed", "until long")

    def process(self, keys, rows, times):
        at = rows["at"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy()
        order = np.lexsort((at, keys.row_keys()))
        rows, at = rows.take(order), at[order]
        amount = rows["amount"].to_numpy()
        until = np.where(amount < TINY, at + MINUTE_MS, NEVER)  # until when a payment arms
        armed = self.armed.get(keys)["until"].fill_null(NEVER).to_numpy()
        before = np.roll(until, 1)
        before[keys.starts] = armed
        yield rows.filter(pa.array((amount > LARGE) & (at <= before)))
        last = until[keys.ends - 1]
        held, arms = armed != NEVER, last != NEVER
        self.timers.delete(keys.take(held), armed[held])
        self.timers.register(keys.take(arms), last[arms])
        self.armed.clear(keys.take(~arms))
        self.armed.put(keys.take(arms), {"until": last[arms]})

    def expired(self, keys, expiry_ms, times):
        self.armed.clear(keys)


class Sessions(ColumnarProcessor):
    """Group clicks into sessions: an array per user, merged with new clicks where they are close."""

    def init(self, handle):
        self.timers = handle.timers
        self.open = handle.getColumnState(
            "open", "sessions array<struct<start:long,end:long,clicks:long>>"
        )

    def process(self, keys, rows, times):
        at = rows["at"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy()
        owner, start, end, clicks = self.opened(keys)
        owner = np.concatenate([owner, keys.row_keys()])
        start, end = np.concatenate([start, at]), np.concatenate([end, at])
        clicks = np.concatenate([clicks, np.ones(len(at), np.int64)])
        order = np.lexsort((start, owner))
        owner, start, end, clicks = owner[order], start[order], end[order], clicks[order]
        far = 2**42  # later than all times, so that the ends of one user are before the next one's
        reached = np.maximum.accumulate(end + owner * far) - owner * far
        first = np.ones(len(owner), bool)
        first[1:] = (owner[1:] != owner[:-1]) | (start[1:] > reached[:-1] + GAP_MS)
        firsts = np.flatnonzero(first)
        owner, start = owner[firsts], start[firsts]
        end, clicks = np.maximum.reduceat(end, firsts), np.add.reduceat(clicks, firsts)
        self.timers.register(keys.take(owner), end + GAP_MS)
        self.keep(keys, owner, start, end, clicks)

    def expired(self, keys, expiry_ms, times):
        last = pc.max(expiry_ms).as_py() - GAP_MS
        keys = keys.take(np.unique(keys.slots, return_index=True)[1])
        owner, start, end, clicks = self.opened(keys)
        over = end <= last
        self.keep(keys, owner[~over], start[~over], end[~over], clicks[~over])
        yield {
            "user": keys["user"].take(owner[over]),
            "start": pa.array(start[over], pa.timestamp("ms", "UTC")),
            "end": pa.array(end[over], pa.timestamp("ms", "UTC")),
            "clicks": clicks[over],
        }

    def opened(self, keys):
        lists = self.open.get(keys)["sessions"].combine_chunks()
        owner = pc.list_parent_indices(lists).to_numpy()
        start, end, clicks = (part.to_numpy() for part in lists.flatten().flatten())
        return owner, start, end, clicks

    def keep(self, keys, owner, *columns):
        offsets = np.searchsorted(owner, np.arange(len(keys) + 1)).astype(np.int32)
        sessions = pa.StructArray.from_arrays(map(pa.array, columns), ["start", "end", "clicks"])
        some = np.diff(offsets) > 0
        lists = pa.ListArray.from_arrays(pa.array(offsets), sessions).filter(pa.array(some))
        self.open.put(keys.take(some), {"sessions": lists})
        self.open.clear(keys.take(~some))
