"""Convert bytes to values and back, with pure functions and without files."""
