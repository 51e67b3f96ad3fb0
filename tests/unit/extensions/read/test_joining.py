"""Packed sorting against numpy's own."""

import numpy as np
import pytest

from statelog.extensions.read.joining import hash_order, numbered, stable_order


@pytest.mark.parametrize("seed", range(30))
def test_orders_are_those_of_a_stable_sort(seed: int) -> None:
    rng = np.random.default_rng(seed)
    length = int(rng.integers(0, 300))
    most = int(rng.choice([1, 5, 1000, 2**62]))
    numbers = rng.integers(0, most, length)
    assert np.argsort(numbers, kind="stable").tolist() == stable_order(numbers).tolist()
    distinct, index = numbered(numbers)
    expected = np.unique(numbers, return_inverse=True)
    assert [order.tolist() for order in expected] == [distinct.tolist(), index.tolist()]
    # Few upper bits, so that many hashes differ only where the position is packed.
    hashes = rng.integers(0, 2, length).astype(np.uint64) << np.uint64(63)
    hashes |= rng.integers(0, 4, length).astype(np.uint64)
    assert np.argsort(hashes, kind="stable").tolist() == hash_order(hashes).tolist()
