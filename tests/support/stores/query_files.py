"""The files of a query, in memory."""

from collections.abc import Sequence


class Files:
    """Files in memory."""

    url = "file:/q"

    def __init__(self, **contents: bytes) -> None:
        self.contents = {name.replace("__", "/"): data for name, data in contents.items()}

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        return self.contents.get(name)

    def names(self, folder: str) -> Sequence[str]:
        inside = [name for name in self.contents if name.startswith(f"{folder}/")]
        return [name.removeprefix(f"{folder}/") for name in inside]
