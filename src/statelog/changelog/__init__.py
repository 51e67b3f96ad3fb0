"""Flink's state changelog: storage, writers, schedulers, uploader, readers."""
