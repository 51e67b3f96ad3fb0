"""By which number a query finds its own workers."""

from statelog.spark.jvm.python_job import QueryNumbers


def test_each_active_query_has_a_number_and_keeps_it() -> None:
    numbers, active = QueryNumbers(), {"a", "b"}
    for _ in range(2):
        assert 0 == numbers.number("a", 2, active.__contains__)
        assert 1 == numbers.number("b", 2, active.__contains__)
    assert numbers.number("c", 2, active.__contains__) is None


def test_a_number_is_given_again_once_its_query_has_ended() -> None:
    numbers, active = QueryNumbers(), {"a", "b"}
    for query in "ab":
        numbers.number(query, 2, active.__contains__)
    active.remove("a")
    assert 0 == numbers.number("c", 2, {*active, "c"}.__contains__)
    # It starts again: its number is taken, and no two active queries have the same.
    assert numbers.number("a", 2, {"a", "b", "c"}.__contains__) is None
    assert 2 == numbers.number("a", 3, {"a", "b", "c"}.__contains__)


def test_a_query_that_starts_again_finds_its_workers() -> None:
    numbers, active = QueryNumbers(), {"a", "b"}
    for query in "ab":
        numbers.number(query, 3, active.__contains__)
    active.remove("b")
    assert 1 == numbers.number("b", 3, {"a", "b"}.__contains__)
