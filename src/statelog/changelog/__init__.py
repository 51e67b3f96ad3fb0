"""Flink's writer side: storage, writers, schedulers, uploaders, registries, readers."""
