"""A proxy before an S3 server that does wrong what servers and networks do wrong."""

import contextlib
import enum
import http.client
import http.server
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.servers.server_process import S3Server

CONFLICT = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>ConditionalRequestConflict</Code><Message>The conditional request cannot succeed due to \
a conflicting operation against this resource.</Message><RequestId>1</RequestId></Error>"""
"""The body of S3's 409 to a conditional put while another request for the name is under way."""
_ERROR = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{}</Code><Message>{}</Message></Error>'
)
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Fault(enum.Enum):
    """What happens to one request."""

    UNAVAILABLE = "503"
    """The server refuses for the moment, and does nothing."""
    DONE_500 = "500 when done"
    """The server acts, and answers with an internal error."""
    LOST_ANSWER = "lost answer"
    """The server acts, and the connection ends without an answer."""
    RESET = "reset"
    """The connection is reset before the server gets the request."""
    TRUNCATED = "truncated"
    """The server acts, and the connection ends in the middle of the answer's body."""
    CONFLICT = "409"
    """The server answers with the conflict of conditional puts, and does nothing."""
    CONFLICT_DONE = "409 when done"
    """The server acts, and answers with the conflict, as a gateway before it may."""
    EXISTS_DONE = "412 when done"
    """The server acts, and answers that the name is taken: the request was repeated on the way."""
    FORBIDDEN = "403"
    """The credentials have expired."""
    SLOW = "slow"
    """The server acts, and the answer comes after the client's time-out."""
    SHORTENED = "shortened"
    """The body of a read is cut short, and the header says the shorter length."""
    FLIPPED = "flipped"
    """One bit of the body of a read is wrong."""


EIGHT = (
    Fault.UNAVAILABLE,
    Fault.DONE_500,
    Fault.LOST_ANSWER,
    Fault.RESET,
    Fault.TRUNCATED,
    Fault.CONFLICT,
    Fault.FORBIDDEN,
    Fault.SLOW,
)
"""The ways in which a request fails."""


@dataclass
class Exchange:
    """One request as the proxy saw it."""

    method: str
    path: str
    conditional: bool
    fault: Fault | None = None

    @property
    def reads_object(self) -> bool:
        """Whether its answer is content of an object."""
        return self.method == "GET" and "list-type=" not in self.path


Faults = Callable[[Exchange], Fault | None]


def no_fault(exchange: Exchange) -> Fault | None:
    """Let every request pass."""
    return None


def first(fault: Fault, times: int = 1, when: Callable[[Exchange], bool] = bool) -> Faults:
    """Return faults of the first *times* requests for which *when* holds."""
    left = iter([fault] * times)
    lock = threading.Lock()

    def draw(exchange: Exchange) -> Fault | None:
        with lock:
            return next(left, None) if when(exchange) else None

    return draw


@dataclass
class Mix:
    """
    Faults of a part of all requests, drawn by chance.

    Args:
        rate: Part of the requests that fail, 0 to 1.
        kinds: The faults; each is as frequent as the others.
        seed: Of the draws.
        forbidden_s: How long all requests are refused once one is.
    """

    rate: float
    kinds: tuple[Fault, ...] = EIGHT
    seed: int = 1
    forbidden_s: float = 0.0
    drawn: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._lock = threading.Lock()
        self._forbidden_until = 0.0

    def __call__(self, exchange: Exchange) -> Fault | None:
        with self._lock:
            if time.monotonic() < self._forbidden_until:
                return Fault.FORBIDDEN
            if self._chance.random() >= self.rate:
                return None
            fault = self._chance.choice(self.kinds)
            if fault is Fault.FORBIDDEN:
                self._forbidden_until = time.monotonic() + self.forbidden_s
            self.drawn[fault.value] += 1
            return fault


class S3Proxy:
    """
    Passes requests on to an S3 server.

    `faults` says what happens to a request; `ignores_conditions` makes it a server that writes a
    name twice; `slow_s` is how late a slow answer comes; `page` bounds the names in an answer to a
    listing, where it is not 0; each request is passed on after `latency_s`.
    """

    def __init__(self, server: S3Server) -> None:
        self.exchanges: list[Exchange] = []
        self.ignores_conditions = False
        self.faults: Faults = no_fault
        self.slow_s = 2.0
        self.page = 0
        self.latency_s = 0.0
        handler = type("_Handler", (_Handler,), {"proxy": self, "target": server.endpoint[7:]})
        self._http = _Server(("127.0.0.1", 0), handler)
        self.server = S3Server(f"http://127.0.0.1:{self._http.server_port}", os.getpid())
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "S3Proxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(60)

    def count(self, method: str, part: str = "") -> int:
        return sum(
            exchange.method == method and part in exchange.path for exchange in self.exchanges
        )


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients die and give up; tests say what went wrong, not the proxy."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: S3Proxy
    target: str

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        conditional = "if-none-match" in {name.lower() for name in self.headers}
        exchange = Exchange(self.command, self.path, conditional)
        self.proxy.exchanges.append(exchange)
        time.sleep(self.proxy.latency_s)
        fault = exchange.fault = self.proxy.faults(exchange)
        if fault is Fault.UNAVAILABLE:
            self._refuse(503, "SlowDown", "Please reduce your request rate.")
        elif fault is Fault.FORBIDDEN:
            self._refuse(403, "ExpiredToken", "The provided token has expired.")
        elif fault is Fault.CONFLICT:
            self._answer(409, {"content-type": "application/xml"}, CONFLICT)
        elif fault is Fault.RESET:
            self._reset()
        else:
            self._pass_on(body, exchange)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _pass_on(self, body: bytes, exchange: Exchange) -> None:
        headers = dict(self.headers.items())
        if self.proxy.ignores_conditions:
            headers = {k: v for k, v in headers.items() if k.lower() != "if-none-match"}
        connection = http.client.HTTPConnection(self.target, timeout=30)
        with contextlib.closing(connection):
            page = f"&max-keys={self.proxy.page}" if "list-type=" in self.path else ""
            connection.request(
                self.command, self.path + (page if self.proxy.page else ""), body, headers
            )
            answer = connection.getresponse()
            content = answer.read()
        answer_headers = {
            name.lower(): value
            for name, value in answer.getheaders()
            if name.lower() not in ("transfer-encoding", "connection")
        }
        fault = exchange.fault
        if fault is Fault.DONE_500:
            self._refuse(500, "InternalError", "We encountered an internal error.")
        elif fault is Fault.CONFLICT_DONE:
            self._answer(409, {"content-type": "application/xml"}, CONFLICT)
        elif fault is Fault.EXISTS_DONE:
            self._refuse(412, "PreconditionFailed", "A precondition did not hold.")
        elif fault is Fault.LOST_ANSWER:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault is Fault.TRUNCATED and content and self.command != "HEAD":
            self._send_head(answer.status, {**answer_headers, "content-length": str(len(content))})
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self._reset()
        else:
            if fault is Fault.SLOW:
                time.sleep(self.proxy.slow_s)
            if answer.status < 300 and exchange.reads_object:
                content = _damaged(content, fault)
                answer_headers["content-length"] = str(len(content))
            self._answer(answer.status, answer_headers, content)

    def _refuse(self, status: int, code: str, message: str) -> None:
        content = _ERROR.format(code, message).encode()
        self._answer(status, {"content-type": "application/xml"}, content)

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self._send_head(status, {"content-length": str(len(content)), **headers})
        if self.command != "HEAD":
            self.wfile.write(content)

    def _send_head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)

    def log_message(self, format: str, *arguments: object) -> None:
        """Tests say what went wrong, not the proxy."""


def _damaged(content: bytes, fault: Fault | None) -> bytes:
    """Return what a faulty network makes of the content of an object."""
    if fault is Fault.SHORTENED:
        return content[: len(content) // 2]
    if fault is Fault.FLIPPED and content:
        at = random.randrange(len(content))
        return content[:at] + bytes([content[at] ^ (1 << random.randrange(8))]) + content[at + 1 :]
    return content
