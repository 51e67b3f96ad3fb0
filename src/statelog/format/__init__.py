"""Bytes to values and back; pure functions, no files."""
