"""A frame that notes how it is written."""


class Frame:
    """A frame that has the properties of its query, and nothing else."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sparkSession = self.sparkContext = self
        self._properties = {"sql.streaming.queryId": "query"}

    def getLocalProperty(self, key: str) -> str | None:
        return self._properties.get(key)

    def setLocalProperty(self, key: str, value: str) -> None:
        self._properties[key] = value
