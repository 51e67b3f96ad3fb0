"""
Run moto's S3 server with atomic conditional puts: `python -m tests.support.servers.s3_server PORT`.

moto looks for the object first and stores it later, so that two of several writers of one name may succeed.  S3 does
both in one step, and statelog refuses a server that does not.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple


class AtomicPuts:
    """A WSGI application that answers one PUT after another."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT":
            answer: Iterable[bytes] = self._application(environ, start_response)
            return answer
        with self._lock:
            return list(self._application(environ, start_response))


def main(port: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    application = AtomicPuts(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main(int(sys.argv[1]))
