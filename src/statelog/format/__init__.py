"""Convert between bytes and values with pure functions, without accessing files."""
