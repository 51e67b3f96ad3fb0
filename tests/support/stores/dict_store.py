"""A store in a dict: counts requests, loses answers on request, and lets others in between."""

import datetime as dt
from collections import Counter
from collections.abc import Callable

from statelog.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from statelog.store import ObjectInfo
from statelog.testing.faulty_store import joined

EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class DictStore:
    """
    Keeps the promises of `ObjectStore`, and no others.

    `on_request(operation, path)` runs before each request and may raise; if it returns "lose", the
    request is done and then answered with an error.  A conditional put is answered as by S3's 409,
    and nothing is done, if it returns "conflict"; it stays in flight if it returns a number.  Then
    `while_in_flight` runs, in which so many other puts of the name get 409 and nothing can be read,
    before the object lands; if the method returns False and none had landed it, the put fails.
    If it returns "late", the put fails and its object waits in `late_puts`, until `arrive` is called.
    """

    url = "dict://"

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, dt.datetime]] = {}
        self.now = EPOCH
        self.requests: Counter[str] = Counter()
        self.deleted: list[str] = []
        self.in_flight: dict[str, tuple[int, bytes]] = {}
        self.late_puts: list[tuple[str, bytes]] = []
        self.while_in_flight: Callable[[], bool] = lambda: True
        self.on_request: Callable[[str, str], str | None] = lambda operation, path: None

    def _request(self, operation, path, action):
        self.requests[operation] += 1
        verdict = self.on_request(operation, path)
        result = action()
        if verdict == "lose":
            raise StoreError(f"{operation} {path}: connection reset", path=path)
        return result

    def put(self, path, data):
        self._request("put", path, lambda: self._store(path, data))

    def put_if_absent(self, path, data):
        self.requests["put_if_absent"] += 1
        verdict = self.on_request("put_if_absent", path)
        if path in self.in_flight:
            refusals, content = self.in_flight[path]
            if refusals:
                self.in_flight[path] = refusals - 1, content
                self._conflict(path)
            self._land(path)
        if path in self.objects:
            raise ObjectExistsError(f"{path} exists", path=path)
        if verdict == "conflict":
            self._conflict(path)
        if verdict == "late":
            self.late_puts.append((path, joined(data)))
            raise StoreError(f"put_if_absent {path}: time out", path=path)
        if isinstance(verdict, int):
            self.in_flight[path] = verdict, joined(data)
            if not self.while_in_flight() and self.in_flight.pop(path, None):
                raise StoreError(f"put_if_absent {path}: time out", path=path)
            self._land(path)
            return
        self._store(path, data)
        if verdict == "lose":
            raise StoreError(f"put_if_absent {path}: connection reset", path=path)

    def arrive(self, at):
        """Let the conditional put at this place of `late_puts` arrive; return whether its name was free."""
        path, data = self.late_puts.pop(at)
        is_free = path not in self.objects and path not in self.in_flight
        if is_free:
            self._store(path, data)
        return is_free

    def _land(self, path):
        if path in self.in_flight:
            self._store(path, self.in_flight.pop(path)[1])

    def _conflict(self, path):
        raise ObjectExistsError(f"{path}: 409 ConditionalRequestConflict", path=path)

    def _store(self, path, data):
        self.objects[path] = (joined(data), self.now)

    def _read(self, path):
        if path not in self.objects:
            raise ObjectNotFoundError(f"no {path}", path=path)
        return self.objects[path]

    def get(self, path):
        return self._request("get", path, lambda: memoryview(self._read(path)[0]))

    def get_range(self, path, start, length):
        def action():
            return memoryview(self._read(path)[0])[start : start + length]

        return self._request("get_range", path, action)

    def head(self, path):
        def action():
            content, modified = self._read(path)
            return ObjectInfo(path, len(content), modified)

        return self._request("head", path, action)

    def list(self, prefix=""):
        def action():
            return [
                ObjectInfo(path, len(content), modified)
                for path, (content, modified) in sorted(self.objects.items())
                if not prefix or path.startswith(prefix + "/")
            ]

        return iter(self._request("list", prefix, action))

    def list_folders(self, prefix=""):
        def action():
            cut = len(prefix) + 1 if prefix else 0
            inside = [path for path in self.objects if not prefix or path.startswith(prefix + "/")]
            return sorted({path[cut:].split("/")[0] for path in inside if "/" in path[cut:]})

        return self._request("list_folders", prefix, action)

    def delete(self, paths):
        for path in paths:

            def action(path=path):
                if self.objects.pop(path, None) is not None:
                    self.deleted.append(path)

            self._request("delete", path, action)


class CountingStore(DictStore):
    """Counts the requests that read an object, by its path."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def get(self, path):
        self.reads[path] += 1
        return super().get(path)

    def get_range(self, path, start, length):
        self.reads[path] += 1
        return super().get_range(path, start, length)
