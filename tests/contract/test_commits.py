"""Commits on a real server: lost answers, servers that ignore conditions, and what a commit costs."""

import itertools
import os
import pickle
from collections import Counter
from collections.abc import Callable

import pytest
from tests.contract.jobs import commit
from tests.support.locations.checkpoints import coordinator, read_log, started
from tests.support.servers.s3_faults import Exchange, Fault, S3Proxy, first, no_fault
from tests.support.servers.server_process import S3Server

from statelog.errors import FencedError, ObjectExistsError, StoreError
from statelog.store import CachedStore, ObjectStore, open_store, verify_put_if_absent
from statelog.store.api import Buffers
from statelog.store.probe import ROUNDS, WRITERS
from statelog.store.verified import create
from statelog.testing.faulty_store import FaultyStore

PLACES = itertools.count()


@pytest.fixture
def proxy(s3_server: S3Server):
    with S3Proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture
def place(proxy: S3Proxy, s3_bucket: str) -> ObjectStore:
    """A store behind the proxy, at a URL that no test has used."""
    return open_store(
        f"s3://{s3_bucket}/job-{os.getpid()}-{next(PLACES)}", storage_options=proxy.server.options
    )


def names(store: ObjectStore) -> list[str]:
    return sorted(info.path for info in store.list())


class Forgetful:
    """A store that takes every put; the rest is a real store's."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self.url = url
        self.puts: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def put_if_absent(self, path: str, data: Buffers) -> None:
        self.puts.append(path)
        self._store.delete([path])
        self._store.put(path, data)


# --- the probe ------------------------------------------------------------------------------------


def test_a_server_that_ignores_the_condition_is_refused(proxy, place):
    proxy.ignores_conditions = True
    one = coordinator(place)
    for _ in range(2):  # a refusal is not remembered as a success
        with pytest.raises(
            StoreError, match=r"writes a name twice .*If-None-Match.*Two drivers could both commit"
        ) as caught:
            one.claim()
        assert caught.value.reason == "put_if_absent"
        assert "\n" not in str(caught.value)
        assert one.epoch is None
        assert names(place) == [], "neither a claim nor a probe is left"
    proxy.ignores_conditions = False
    assert one.claim() == 0, "the server was replaced by a better one"


def test_a_store_that_ignores_the_condition_is_refused():
    store = Forgetful(open_store(f"memory://forgetful-{next(PLACES)}"), "s3://forgetful/job")
    with pytest.raises(
        StoreError, match="s3://forgetful/job cannot hold checkpoints: it writes a name twice"
    ):
        coordinator(store).claim()
    assert len(set(store.puts)) == 1
    assert store.puts[0].startswith("tmp/probe-")
    assert names(store) == []


def test_the_probe_costs_its_requests_once_for_a_location(proxy, place, monkeypatch):
    verify_put_if_absent(place)
    puts = [each for each in proxy.exchanges if each.conditional]
    assert len(puts) == WRITERS * ROUNDS + 1
    assert all("/tmp/probe-" in each.path for each in puts)
    others = Counter(each.method for each in proxy.exchanges if not each.conditional)
    # The result is not there; the winners' objects; the deletion; the result is put.
    assert others == {"GET": 1 + ROUNDS, "POST": 1, "PUT": 1}
    requests = len(proxy.exchanges)
    for again in (place, CachedStore(pickle.loads(pickle.dumps(place)), 1000)):
        verify_put_if_absent(again)
    assert len(proxy.exchanges) == requests
    monkeypatch.setattr("statelog.store.probe._verified", set())  # as in the next process
    verify_put_if_absent(place)
    assert [each.method for each in proxy.exchanges[requests:]] == ["GET"]
    (result,) = names(place)
    assert result.startswith("probed/")


def test_the_probe_costs_a_micro_batch_nothing(proxy, place):
    one = started(place)
    for checkpoint_id in (1, 2):
        commit(one, checkpoint_id)
    del proxy.exchanges[:]
    commit(one, 3)
    assert [(each.method, each.conditional) for each in proxy.exchanges] == [("PUT", True)]
    assert "chk-3/_metadata" in proxy.exchanges[0].path


def test_known_stores_are_not_probed(tmp_path):
    memory = open_store(f"memory://probe-{next(PLACES)}")
    for store in (memory, open_store(str(tmp_path / "job")), FaultyStore()):
        verify_put_if_absent(store)
    assert not (tmp_path / "job").exists()
    assert names(memory) == []


@pytest.mark.parametrize("nth", [1, 2], ids=["first put", "second put"])
def test_a_lost_answer_to_the_probe_is_no_refusal(proxy, place, nth):
    puts = itertools.count(1)
    proxy.faults = lambda exchange: (
        Fault.LOST_ANSWER if exchange.method == "PUT" and next(puts) == nth else None
    )
    verify_put_if_absent(place)
    # The lost one again, perhaps one more because all writers of a race were refused, and the result.
    assert 3 <= proxy.count("PUT") - WRITERS * ROUNDS <= 4
    assert [name for name in names(place) if not name.startswith("probed/")] == []


# --- lost answers ---------------------------------------------------------------------------------


def creates(part: str) -> Callable[[Exchange], bool]:
    """Return whether a request is a conditional put of such a name."""
    return lambda exchange: exchange.conditional and part in exchange.path


def lose_first(proxy: S3Proxy, part: str) -> None:
    """Lose the answer to the first conditional put of such a name."""
    proxy.faults = first(Fault.LOST_ANSWER, when=creates(part))


def test_after_a_lost_answer_the_name_is_put_again_and_the_object_compared(proxy, place):
    lose_first(proxy, "name")
    create(place, "name", b"ours")
    assert proxy.count("PUT", "name") == 2
    assert proxy.count("GET", "name") == 1
    assert bytes(place.get("name")) == b"ours"


@pytest.mark.parametrize("fault", [Fault.CONFLICT_DONE, Fault.EXISTS_DONE, Fault.DONE_500])
def test_an_object_that_was_stored_is_the_own_whatever_the_answer(proxy, place, fault):
    proxy.faults = first(fault, when=creates("name"))
    create(place, "name", b"ours")
    assert bytes(place.get("name")) == b"ours"


def test_after_a_lost_answer_another_object_is_not_mistaken_for_the_own(proxy, place):
    place.put("name", b"somebody else's")
    lose_first(proxy, "name")
    with pytest.raises(ObjectExistsError):
        create(place, "name", b"ours")
    assert bytes(place.get("name")) == b"somebody else's"


def test_a_plain_refusal_costs_no_second_request(proxy, place):
    place.put("name", b"ours")
    del proxy.exchanges[:]
    with pytest.raises(ObjectExistsError):
        place.put_if_absent("name", b"ours")
    assert [exchange.method for exchange in proxy.exchanges] == ["PUT"]


def test_a_commit_whose_answer_was_lost_is_a_commit(proxy, place):
    one = started(place)
    log = commit(one, 1)
    lose_first(proxy, "chk-2/_metadata")
    log += commit(one, 2)
    assert one.latest is not None
    assert one.latest.checkpoint_id == 2
    proxy.faults = no_fault
    again = started(place, "b")
    assert again.latest is not None
    assert again.latest.checkpoint_id == 2
    assert read_log(place, again.latest.log) == log
    with pytest.raises(FencedError):
        commit(one, 3)


def test_a_claim_whose_answer_was_lost_is_a_claim(proxy, place):
    lose_first(proxy, "chk-0/_metadata")
    one = started(place)
    assert one.epoch == 0
    stored = [name for name in names(place) if not name.startswith("probed/")]
    assert stored == ["chk-0/_metadata"]


def test_a_lost_answer_is_not_mistaken_for_somebody_elses_commit(proxy, place):
    one = started(place)
    commit(one, 1)
    other = open_store(place.url, storage_options=proxy.server.options)
    other.put_if_absent("chk-2/_metadata", b"somebody else's")
    lose_first(proxy, "chk-2/_metadata")
    with pytest.raises(FencedError, match="exists and this owner did not write it"):
        commit(one, 2)


# --- conflicts: S3's 409 to a conditional put --------------------------------------------------------


def conflict_at_first(proxy: S3Proxy, part: str, times: int) -> None:
    """Answer the first conditional puts of such a name with 409."""
    proxy.faults = first(Fault.CONFLICT, times, creates(part))


def test_a_conflict_is_no_object_that_exists(proxy, place):
    conflict_at_first(proxy, "name", 2)
    create(place, "name", b"ours")
    assert proxy.count("PUT", "name") == 3
    assert names(place) == ["name"]


def test_a_commit_that_conflicts_is_put_again(proxy, place):
    one = started(place)
    conflict_at_first(proxy, "chk-1/_metadata", 2)
    log = commit(one, 1)
    assert proxy.count("PUT", "chk-1/_metadata") == 3
    again = started(place, "b")
    assert again.latest is not None
    assert read_log(place, again.latest.log) == log


def test_a_commit_that_conflicts_for_ever_is_an_error_and_can_be_repeated(proxy, place):
    one = started(place)
    proxy.faults = first(Fault.CONFLICT, 100, creates(""))
    with pytest.raises(StoreError, match=r"answered 3 times .*409") as caught:
        commit(one, 1)
    assert not isinstance(caught.value, ObjectExistsError)
    assert proxy.count("PUT", "chk-1/_metadata") == 3, "the first one and max_retries"
    proxy.faults = no_fault
    assert one.complete(1, properties={}).checkpoint_id == 1


def test_a_claim_that_conflicts_skips_no_number(proxy, place):
    first = started(place, "first")
    conflict_at_first(proxy, "chk-1/_metadata", 2)
    second = started(place, "second")
    assert second.epoch == 1
    with pytest.raises(FencedError):
        commit(first, 1)
    commit(second, 2)


def test_a_probe_that_conflicts_is_asked_again(proxy, place):
    conflict_at_first(proxy, "tmp/probe-", 1)
    verify_put_if_absent(place)
    assert proxy.count("PUT") == WRITERS * ROUNDS + 1 + 1 + 1, (
        "the refused one again, and the result"
    )
    assert [name for name in names(place) if not name.startswith("probed/")] == []
