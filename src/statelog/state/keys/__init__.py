"""
Keys: their hashes, and an index for large numbers of keys.

    key_groups   Spark's `xxhash64` of one key; key_hash: of columns
    slot_index   keys -> slots, and the keys in columns
    entry_heap   entries in columns, found by position
    state_key    a key that a caller gives
"""
