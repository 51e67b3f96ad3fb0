"""Work in a thread of its own."""

import threading

import pytest

from statelog.runtime.pool import in_background


def test_the_result_arrives_from_a_daemon_thread_with_the_name() -> None:
    def work() -> tuple[str, bool]:
        thread = threading.current_thread()
        return thread.name, thread.daemon

    assert in_background(work, "work-1").result(10) == ("work-1", True)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3)])
def test_an_error_arrives(error: BaseException) -> None:
    def work() -> None:
        raise error

    assert in_background(work, "work-2").exception(10) is error
