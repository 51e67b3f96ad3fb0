"""Hashes of keys: Spark's `xxhash64` of one key (`key_groups`) and of columns (`key_hash`)."""
