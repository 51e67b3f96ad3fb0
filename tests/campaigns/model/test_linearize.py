"""The checker of journals finds an order of concurrent requests, and finds that there is none."""

from typing import Any

import pytest
from tests.campaigns.model.linearize import check_location, locations_of

from statelog.errors import InvariantError

LISTED = {"kind": "listed", "number": -1}


class Journal:
    """Lines as `tests.campaigns.chaos.request_log` writes them, for one location."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def begin(self, owner: str, *events: dict[str, Any]) -> str:
        name = str(len(self.lines))
        self.lines.append({"began": name, "location": "job", "owner": owner, "events": [*events]})
        return name

    def end(self, name: str, outcome: str = "done") -> None:
        self.lines.append({"ended": name, "outcome": outcome})

    def request(self, owner: str, *events: dict[str, Any], outcome: str = "done") -> None:
        self.end(self.begin(owner, *events), outcome)

    def happened(self, owner: str, kind: str, number: int) -> None:
        event = {"kind": kind, "number": number}
        self.lines.append({"event": event, "location": "job", "owner": owner})

    def start(self, owner: str, number: int, newest: int) -> None:
        self.request(owner, LISTED)
        self.request(owner, claim(number))
        self.request(owner, LISTED)
        self.happened(owner, "restored", newest)

    def commit(self, owner: str, number: int, parent: int) -> None:
        self.request(owner, put(number, parent))
        self.happened(owner, "reported", number)

    def check(self) -> int:
        return sum(map(check_location, locations_of(self.lines).values()))


def claim(number: int) -> dict[str, Any]:
    return {"kind": "claim", "number": number}


def put(number: int, parent: int, attempt: str = "x") -> dict[str, Any]:
    return {"kind": "put", "number": number, "parent": parent, "attempt": attempt}


def deleted(number: int) -> dict[str, Any]:
    return {"kind": "deleted", "number": number}


@pytest.fixture
def journal() -> Journal:
    journal = Journal()
    journal.start("a", 0, -1)
    journal.commit("a", 1, -1)
    return journal


def test_requests_one_after_another_conform(journal: Journal) -> None:
    journal.commit("a", 2, 1)
    journal.request("a", deleted(1))
    journal.start("b", 3, 2)
    journal.request("a", put(3, 2), outcome="refused")
    journal.commit("b", 4, 2)
    assert 16 == journal.check()


@pytest.mark.parametrize("answered_first", ["listing", "put"])
def test_a_listing_and_a_put_conform_in_any_order(journal: Journal, answered_first: str) -> None:
    listing, commit = journal.begin("b", LISTED), journal.begin("a", put(2, 1))
    for name in (listing, commit) if answered_first == "listing" else (commit, listing):
        journal.end(name)
    journal.request("b", claim(2), outcome="refused")  # so the listing was first
    journal.start("b", 3, 2)
    journal.check()


def test_a_put_of_a_dead_process_may_come_later_or_never(journal: Journal) -> None:
    journal.begin("a", put(2, 1))
    journal.begin("a", LISTED)  # has no effect without an answer
    never = Journal()
    never.lines = [*journal.lines]
    never.start("b", 2, 1)
    never.check()
    journal.start("b", 3, 2)
    journal.check()


def test_a_put_of_an_unknown_outcome_is_read_back(journal: Journal) -> None:
    journal.request("a", put(2, 1), outcome="unknown")
    journal.request("a", put(2, 1), outcome="refused")
    journal.happened("a", "reported", 2)
    journal.commit("a", 3, 2)
    journal.check()


def wrong_number(journal: Journal) -> None:
    journal.start("b", 3, 1)


def stale_parent(journal: Journal) -> None:
    journal.commit("a", 2, 1)
    journal.commit("a", 3, 1)


def same_number_twice(journal: Journal) -> None:
    journal.start("b", 2, 1)
    journal.commit("a", 2, 1)


def a_put_after_its_refusal(journal: Journal) -> None:
    journal.request("a", put(2, 1), outcome="refused")
    journal.start("b", 3, 2)


def a_put_before_it_began(journal: Journal) -> None:
    journal.start("b", 3, 2)
    journal.begin("a", put(2, 1))


def newest_deleted(journal: Journal) -> None:
    journal.request("a", deleted(1))


def claim_deleted(journal: Journal) -> None:
    journal.request("a", deleted(0))


def no_look(journal: Journal) -> None:
    journal.request("b", LISTED)
    journal.request("b", claim(2))
    journal.happened("b", "restored", 1)


@pytest.mark.parametrize(
    "wrong",
    [
        wrong_number,
        stale_parent,
        same_number_twice,
        a_put_after_its_refusal,
        a_put_before_it_began,
        newest_deleted,
        claim_deleted,
        no_look,
    ],
)
def test_a_journal_against_the_rules_does_not_conform(journal: Journal, wrong: Any) -> None:
    wrong(journal)
    with pytest.raises(InvariantError, match="no order of the requests"):
        journal.check()
