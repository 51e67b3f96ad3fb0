"""Keys to numbers: Spark's `xxhash64` in Python (`key_groups`) and over columns (`key_hash`)."""
