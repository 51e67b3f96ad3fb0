"""Commits on a real server: lost answers, servers that ignore conditions, and what a commit costs."""

import itertools
import os
import pickle
from collections import Counter
from collections.abc import Callable

import pytest
from tests.support.locations.checkpoints import coordinator
from tests.support.servers.s3_faults import Exchange, Fault, S3Proxy, first
from tests.support.servers.server_process import S3Server

from statelog.errors import ObjectExistsError, StoreError
from statelog.store import CachedStore, ObjectStore, open_store, verify_put_if_absent
from statelog.store.probe import ROUNDS, WRITERS
from statelog.store.verified import create

PLACES = itertools.count()


@pytest.fixture
def proxy(s3_server: S3Server):
    with S3Proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture
def place(proxy: S3Proxy, s3_bucket: str) -> ObjectStore:
    """A store behind the proxy, at a URL that no test has used."""
    url = f"s3://{s3_bucket}/job-{os.getpid()}-{next(PLACES)}"
    return open_store(url, storage_options=proxy.server.options)


def names(store: ObjectStore) -> list[str]:
    return sorted(info.path for info in store.list())


def test_a_server_that_ignores_the_condition_is_refused(proxy, place):
    proxy.ignores_conditions = True
    owner = coordinator(place)
    for _ in range(2):  # a refusal is not remembered as a success
        with pytest.raises(
            StoreError, match=r"writes a name twice .*If-None-Match.*Two drivers could both commit"
        ) as caught:
            owner.claim()
        assert caught.value.reason == "put_if_absent"
        assert "\n" not in str(caught.value)
        assert owner.epoch is None
        assert names(place) == [], "neither a claim nor a probe is left"
    proxy.ignores_conditions = False
    assert owner.claim() == 0, "the server was replaced by a better one"


def test_the_probe_costs_its_requests_once_for_a_location(proxy, place, monkeypatch):
    verify_put_if_absent(place)
    puts = [exchange for exchange in proxy.exchanges if exchange.conditional]
    assert len(puts) == WRITERS * ROUNDS + 1
    assert all("/tmp/probe-" in put.path for put in puts)
    others = Counter(exchange.method for exchange in proxy.exchanges if not exchange.conditional)
    # The result is not there; the winners' objects; the deletion; the result is put.
    assert others == {"GET": 1 + ROUNDS, "POST": 1, "PUT": 1}
    requests = len(proxy.exchanges)
    for again in (place, CachedStore(pickle.loads(pickle.dumps(place)), 1000)):
        verify_put_if_absent(again)
    assert len(proxy.exchanges) == requests
    monkeypatch.setattr("statelog.store.probe._verified", set())  # as in the next process
    verify_put_if_absent(place)
    assert [exchange.method for exchange in proxy.exchanges[requests:]] == ["GET"]
    (result,) = names(place)
    assert result.startswith("probed/")


def creates(part: str) -> Callable[[Exchange], bool]:
    """Return whether a request is a conditional put of such a name."""
    return lambda exchange: exchange.conditional and part in exchange.path


@pytest.mark.parametrize("fault", [Fault.CONFLICT_DONE, Fault.EXISTS_DONE, Fault.DONE_500])
def test_a_put_that_was_stored_succeeds_whatever_the_response(proxy, place, fault):
    proxy.faults = first(fault, when=creates("name"))
    create(place, "name", b"ours")
    assert bytes(place.get("name")) == b"ours"


def test_a_plain_refusal_costs_no_second_request(proxy, place):
    place.put("name", b"ours")
    del proxy.exchanges[:]
    with pytest.raises(ObjectExistsError):
        place.put_if_absent("name", b"ours")
    assert [exchange.method for exchange in proxy.exchanges] == ["PUT"]
