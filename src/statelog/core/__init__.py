"""Decisions without IO: `handle(event, now_ns) -> actions`.  No clock, no thread, no store."""
