"""Keyed state: tables, value/list/map state, TTL, timers, and their changes as bytes."""
