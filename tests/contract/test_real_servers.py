"""Commits and races on real servers: SeaweedFS, and Azurite."""

import os

import pytest
from tests.contract.jobs import commit
from tests.support.locations.checkpoints import read_log, started
from tests.support.servers.real_stores import AzureServer
from tests.support.servers.server_process import S3Server

from statelog.errors import FencedError, ObjectExistsError
from statelog.runtime.pool import together
from statelog.store import ObjectStore, open_store, verify_put_if_absent

RACES = 10
WRITERS = 8


@pytest.fixture(params=["seaweedfs", "azurite"])
def place(request: pytest.FixtureRequest) -> ObjectStore:
    if request.param == "seaweedfs":
        server: S3Server = request.getfixturevalue("seaweedfs")
        bucket = f"races-{os.urandom(8).hex()}"  # an id of an object comes again
        server.make_bucket(bucket)
        return open_store(f"s3://{bucket}/job", storage_options=server.options)
    azure: AzureServer = request.getfixturevalue("azurite")
    container = request.getfixturevalue("azure_container")
    return open_store(f"az://{container}/job", storage_options=azure.options)


def test_the_server_passes_the_probe(place: ObjectStore):
    verify_put_if_absent(place)
    assert [info.path.partition("/")[0] for info in place.list()] == ["probed"]


def test_one_of_several_writers_wins_each_race(place: ObjectStore):
    def put(name: str, content: bytes) -> bytes | None:
        try:
            place.put_if_absent(name, content)
        except ObjectExistsError:
            return None
        return content

    for race in range(RACES):
        name = f"race/{race}"
        contents = [bytes([writer]) * 100_000 for writer in range(WRITERS)]
        puts = [lambda name=name, content=content: put(name, content) for content in contents]
        answers = together(puts, at_one_moment=True)
        (winner,) = [answer for answer in answers if answer is not None]
        assert bytes(place.get(name)) == winner


def test_commits_are_restored_and_the_first_owner_is_fenced(place: ObjectStore):
    first = started(place, "first")
    changes = [change for number in range(1, 6) for change in commit(first, number)]
    first.clean_up()
    second = started(place, "second")
    assert second.epoch == 6
    assert read_log(place, second.latest.log) == changes
    with pytest.raises(FencedError):
        commit(first, 6)
    changes += commit(second, 7)
    assert read_log(place, started(place, "third").latest.log) == changes
