"""When requests are repeated: the policy, the meaning of errors, and the wait between attempts."""

import obstore.exceptions as obstore_errors
import pytest

from statelog.core.retry_policy import Failure, RequestPolicy
from statelog.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from statelog.store.explain import one_line
from statelog.store.requests import Requests, failure_of

POLICY = RequestPolicy()


def answer(status: int, code: str) -> str:
    return (
        f"Generic S3 error: Error performing PUT http://host/bucket/name in 1ms - Server returned "
        f"non-2xx status code: {status}: <Error><Code>{code}</Code></Error>"
    )


def error_of(
    text: str,
    kind: type[StoreError] = StoreError,
    cause: type[Exception] = obstore_errors.GenericError,
    operation: str = "put",
) -> StoreError:
    error = kind(f"put name failed: {text}", path="name", url="s3://bucket", operation=operation)
    error.__cause__ = cause(text)
    return error


MEANINGS = {
    "server error": (error_of(answer(500, "InternalError")), Failure.TRANSIENT),
    "slow down": (error_of(answer(503, "SlowDown")), Failure.TRANSIENT),
    "too many": (error_of(answer(429, "TooManyRequests")), Failure.TRANSIENT),
    "upload timed out": (error_of(answer(400, "RequestTimeout")), Failure.TRANSIENT),
    "no answer": (error_of("HTTP error: error sending request"), Failure.TRANSIENT),
    "a bad listing": (error_of("Got invalid list response: EOF"), Failure.TRANSIENT),
    "conflict": (
        error_of(answer(409, "ConditionalRequestConflict"), ObjectExistsError),
        Failure.CONFLICT,
    ),
    "conflict of a listing": (error_of(answer(409, "OperationAborted")), Failure.CONFLICT),
    "exists": (error_of(answer(412, "PreconditionFailed"), ObjectExistsError), Failure.FINAL),
    "exists on Azure": (
        error_of(answer(409, "BlobAlreadyExists"), ObjectExistsError),
        Failure.FINAL,
    ),
    "missing": (error_of(answer(404, "NoSuchKey"), ObjectNotFoundError), Failure.FINAL),
    "no bucket": (error_of(answer(404, "NoSuchBucket")), Failure.FINAL),
    "elsewhere": (error_of(answer(301, "PermanentRedirect")), Failure.FINAL),
    "bad request": (error_of(answer(400, "InvalidArgument")), Failure.FINAL),
    "plain http": (error_of("HTTP error: builder error"), Failure.FINAL),
    "forked": (error_of("forked", operation="open"), Failure.FINAL),
    "expired": (error_of(answer(400, "ExpiredToken")), Failure.REFUSED),
    "forbidden": (error_of(answer(403, "AccessDenied")), Failure.REFUSED),
    "a key of many": (error_of("deleting name: AccessDenied"), Failure.REFUSED),
    "no text": (error_of("", cause=obstore_errors.PermissionDeniedError), Failure.REFUSED),
    "no identity": (
        error_of("PUT http://169.254.169.254/latest/api/token: error sending request"),
        Failure.REFUSED,
    ),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_what_an_error_means(name):
    error, expected = MEANINGS[name]
    assert expected is failure_of(error)


def test_a_machine_without_an_identity_is_no_lack_of_rights():
    text = (
        "The operation lacked the necessary privileges to complete: Error performing PUT "
        "http://169.254.169.254/latest/api/token in 2ms - Server returned non-2xx status code: "
        "403 Forbidden: "
    )
    explained = one_line(obstore_errors.PermissionDeniedError(text))
    assert "no credentials were found" in explained
    assert "lack permissions" not in explained


class Time:
    """A clock that only waiting moves, and a source of the largest jitter."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def now_ns(self) -> int:
        return int(sum(self.waits) * 1e9)

    def new_id(self) -> str:
        return ""

    def fraction(self) -> float:
        return 0.999


def attempts(error: StoreError, policy: RequestPolicy = POLICY, *, worked: bool = True) -> Time:
    """Send a request that always fails so; return its waits."""
    time = Time()
    requests = Requests(policy, worked=worked, clock=time, sleep=time.waits.append, ids=time)

    def send() -> None:
        raise error

    with pytest.raises(StoreError) as caught:
        requests.run(send)
    if time.waits:
        assert f"{len(time.waits) + 1} " in str(caught.value)
    assert caught.value.path == "name"
    return time


def test_delays_double_up_to_a_bound():
    waits = attempts(error_of(answer(503, "SlowDown"))).waits
    assert [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10] == [round(wait, 1) for wait in waits]


def test_jitter_is_half_of_a_delay():
    for jitter, expected in ((0.0, 0.2), (0.5, 0.3), (1.0, 0.4)):
        delay_s = POLICY.delay_s(Failure.TRANSIENT, 3, 0.0, worked=True, jitter=jitter)
        assert pytest.approx(expected) == delay_s


def test_attempts_and_time_are_bounded():
    slow_down = error_of(answer(503, "SlowDown"))
    assert [] == attempts(slow_down, RequestPolicy(max_retries=0)).waits
    assert 2 == len(attempts(slow_down, RequestPolicy(max_retries=2)).waits)
    assert 5 > sum(attempts(slow_down, RequestPolicy(retry_timeout_s=5)).waits) > 2


def test_what_cannot_pass_is_reported_at_once():
    for error, meaning in MEANINGS.values():
        if meaning is Failure.FINAL:
            assert [] == attempts(error).waits


def test_a_refusal_is_given_a_minute_where_the_credentials_have_worked():
    expired = error_of(answer(403, "ExpiredToken"))
    assert 50 < sum(attempts(expired).waits) <= 60
    assert 5 == len(attempts(expired, worked=False).waits)
    assert [] == attempts(expired, RequestPolicy(max_retries=0)).waits


def test_a_conflict_that_lasts_is_no_object_that_exists():
    error = error_of(answer(409, "ConditionalRequestConflict"), ObjectExistsError)
    time = Time()
    requests = Requests(POLICY, clock=time, sleep=time.waits.append, ids=time)

    def send() -> None:
        raise error

    with pytest.raises(StoreError, match=r"answered 11 times.*repeat the call") as caught:
        requests.run(send)
    assert not isinstance(caught.value, ObjectExistsError)


def test_an_interrupt_ends_the_wait():
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    def send() -> None:
        raise error_of(answer(503, "SlowDown"))

    with pytest.raises(KeyboardInterrupt):
        Requests(POLICY, sleep=interrupted).run(send)
