"""Make errors about Flink's names suggest statelog's names."""

from statelog import changelog
from statelog.flink_names import explain_names
from statelog.runtime.pool import PoolFuture

explain_names(
    [PoolFuture, *(getattr(changelog, name) for name in dir(changelog) if name[0] != "_")]
)
