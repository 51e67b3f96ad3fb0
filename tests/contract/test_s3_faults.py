"""Every request to S3 under every fault of servers and networks: see docs/how-to/stores.md."""

import itertools
import os
import pickle
from collections.abc import Callable

import pytest
from tests.contract.jobs import commit
from tests.support.locations.checkpoints import read_log, started
from tests.support.project import evidence
from tests.support.servers.s3_faults import EIGHT, Exchange, Fault, Mix, S3Proxy, first, no_fault
from tests.support.servers.server_process import S3Server

from statelog.changelog.reader import read_changes
from statelog.checkpoint.verify import VerifiedObject, verify_location
from statelog.errors import ObjectExistsError
from statelog.model import StateChange
from statelog.store import ObstoreStore, open_store
from statelog.store.requests import repeated_requests
from statelog.store.verified import create

PLACES = itertools.count()
CONTENT = b"0123456789" * 100
TIMEOUT = "500ms"


@pytest.fixture
def proxy(s3_server: S3Server, request: pytest.FixtureRequest):
    failed_before = request.session.testsfailed
    with (
        evidence.campaign("S3 requests under faults", servers=[evidence.server("moto")]) as record,
        S3Proxy(s3_server) as proxy,
    ):
        proxy.slow_s = 0.8
        yield proxy
        if request.session.testsfailed > failed_before:
            record.failed(request.node.name)
        record.runs += 1
        record.counts["requests"] += len(proxy.exchanges)
        record.store_faults.update(
            exchange.fault.value for exchange in proxy.exchanges if exchange.fault
        )


def opened(server: S3Server, bucket: str, place: int, **options: object) -> ObstoreStore:
    given = {**server.options, "max_retries": 10, **options}
    store = open_store(f"s3://{bucket}/faults-{os.getpid()}-{place}", storage_options=given)
    assert isinstance(store, ObstoreStore)
    return store


@pytest.fixture
def store(proxy: S3Proxy, s3_bucket: str) -> ObstoreStore:
    """A store behind the proxy with three objects."""
    store = opened(proxy.server, s3_bucket, next(PLACES), timeout=TIMEOUT)
    for name in ("a", "folder/b", "folder/c"):
        store.put(name, CONTENT)
    del proxy.exchanges[:]
    return store


def names(store: ObstoreStore) -> list[str]:
    return sorted(info.path for info in store.list())


def reads_back(put: Callable[[ObstoreStore], object], name: str):
    def call(store: ObstoreStore) -> object:
        put(store)
        return name in names(store) and bytes(store.get(name))

    return call


def deletes(store: ObstoreStore) -> object:
    store.delete(["a", "folder/b", "missing"])
    return names(store)


REQUESTS: dict[str, tuple[str, Callable[[ObstoreStore], object], object]] = {
    "put": ("PUT", reads_back(lambda store: store.put("new", CONTENT), "new"), CONTENT),
    "put-if-absent": (
        "PUT",
        reads_back(lambda store: create(store, "new", [CONTENT[:7], CONTENT[7:]]), "new"),
        CONTENT,
    ),
    "get": ("GET", lambda store: bytes(store.get("a")), CONTENT),
    "range": ("GET", lambda store: bytes(store.get_range("a", 5, 10)), CONTENT[5:15]),
    "head": ("HEAD", lambda store: store.head("a").size_bytes, len(CONTENT)),
    "list": ("GET", names, ["a", "folder/b", "folder/c"]),
    "folders": ("GET", lambda store: list(store.list_folders()), ["folder"]),
    "delete": ("POST", deletes, ["folder/c"]),
}
"""For each operation the method of its request, a call, and what it returns without a fault."""


@pytest.mark.parametrize("fault", EIGHT, ids=lambda fault: fault.value)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_request_that_fails_is_repeated(
    request_name: str, fault: Fault, proxy: S3Proxy, store: ObstoreStore
):
    method, call, expected = REQUESTS[request_name]
    times = 1 if fault is Fault.SLOW else 2
    proxy.faults = first(fault, times, lambda exchange: exchange.method == method)
    assert expected == call(store)
    assert any(exchange.fault is fault for exchange in proxy.exchanges)


def test_a_mix_of_faults_leaves_commits_exact(proxy: S3Proxy, s3_bucket: str):
    store = opened(proxy.server, s3_bucket, next(PLACES), timeout=TIMEOUT)
    owner = started(store)
    mix = proxy.faults = Mix(0.2, tuple(set(EIGHT) - {Fault.SLOW}), seed=7)
    before = repeated_requests()
    log = [change for number in range(1, 16) for change in commit(owner, number)]
    again = started(pickle.loads(pickle.dumps(store)), "b")
    proxy.faults = no_fault
    assert again.latest is not None
    assert again.latest.checkpoint_id == 15
    assert log == read_log(store, again.latest.log)
    assert repeated_requests() - before >= sum(mix.drawn.values()) - mix.drawn["truncated"] > 0


def test_a_lost_answer_and_then_a_bad_read_are_no_conflict(proxy: S3Proxy, s3_bucket: str):
    """The object is this call's own, though the first read of it to compare is wrong."""
    store = opened(proxy.server, s3_bucket, next(PLACES))
    store.put("warm", b"")
    faults = {"PUT": [Fault.LOST_ANSWER], "GET": [Fault.FLIPPED]}

    def draw(exchange: Exchange) -> Fault | None:
        return faults[exchange.method].pop() if faults.get(exchange.method) else None

    proxy.faults = draw
    create(store, "tag", b"the content of a tag")
    assert {"PUT": [], "GET": []} == faults
    proxy.faults = no_fault
    with pytest.raises(ObjectExistsError):
        create(store, "tag", b"another content")


def listing(exchange: Exchange) -> bool:
    return "list-type=" in exchange.path


@pytest.mark.parametrize("in_order", [True, False], ids=["by name", "from the beginning"])
def test_a_listing_continues_where_it_failed(
    proxy: S3Proxy, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, in_order: bool
):
    monkeypatch.setattr("statelog.store.object_store._PAGE", 5)
    monkeypatch.setattr("statelog.store.object_store.lists_in_order", lambda url: in_order)
    store = opened(proxy.server, s3_bucket, next(PLACES))
    expected = [f"folder/{number:03}" for number in range(30)]
    for name in expected:
        store.put(name, b"")
    proxy.page = 5
    del proxy.exchanges[:]
    faults = iter([None, None, Fault.RESET, Fault.TRUNCATED, None, None, Fault.RESET])
    proxy.faults = lambda exchange: next(faults, None) if listing(exchange) else None
    assert expected == [info.path for info in store.list("folder")]
    requests = [exchange.fault for exchange in proxy.exchanges if listing(exchange)]
    assert 3 == sum(fault is not None for fault in requests)
    if in_order:
        assert 6 + 3 == len(requests), "one for each page and each fault"


def test_credentials_that_are_renewed_in_time_are_no_error(proxy: S3Proxy, store: ObstoreStore):
    proxy.faults = first(Fault.FORBIDDEN, 4)
    assert bytes(store.get("a")) == CONTENT
    proxy.faults = first(Fault.FORBIDDEN, 4)
    copy = pickle.loads(pickle.dumps(store))
    assert bytes(copy.get("a")) == CONTENT, "a task's store knows that the driver's has worked"


DAMAGES = (Fault.FLIPPED, Fault.SHORTENED)


@pytest.mark.parametrize("fault", DAMAGES, ids=lambda fault: fault.value)
@pytest.mark.parametrize("nth", range(1, 9))
def test_one_bad_read_is_no_damage(fault: Fault, nth: int, proxy: S3Proxy, s3_bucket: str):
    store = opened(proxy.server, s3_bucket, next(PLACES))
    log = committed(store)
    assert [] == [found for found in verified(store) if found.problem]
    count = itertools.count(1)
    proxy.faults = lambda exchange: fault if exchange.reads_object and next(count) == nth else None
    restored = started(open_again(store), "b").latest
    assert restored is not None
    assert 4 == restored.checkpoint_id
    other = open_again(store)
    assert log == [change for handle in restored.log for change in read_changes(other, handle)]
    assert [] == [found for found in verified(store) if found.problem]
    assert next(count) > nth


def committed(store: ObstoreStore) -> list[StateChange]:
    owner = started(store)
    return [change for number in range(1, 5) for change in commit(owner, number)]


def open_again(store: ObstoreStore) -> ObstoreStore:
    copy: ObstoreStore = pickle.loads(pickle.dumps(store))
    return copy


def verified(store: ObstoreStore) -> list[VerifiedObject]:
    return list(verify_location(open_again(store)))
