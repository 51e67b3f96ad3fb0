"""Name our spellings in the errors of the public classes for Flink's, at the import."""

from statelog import changelog
from statelog.flink_names import explain_names
from statelog.runtime.pool import PoolFuture

explain_names(
    [PoolFuture, *(getattr(changelog, name) for name in dir(changelog) if name[0] != "_")]
)
