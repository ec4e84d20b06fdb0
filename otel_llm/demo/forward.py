"""Sends what the receiver was sent on to another OTLP endpoint, byte for byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from queue import Full, Queue
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from otel_llm.doctor.finding import address
from otel_llm.errors import ConfigurationError

if TYPE_CHECKING:
    from requests import Session

MOST_WAITING = 256
"""Requests that wait for a slow endpoint; further ones are given up."""
TIMEOUT_S = 5.0
CLOSE_S = 10.0


class Forward:
    """A thread that posts requests to *endpoint*, and counts what failed.

    Args:
        endpoint: Base URL of an OTLP/HTTP receiver, `http://host:4318`.
        headers: Put on every request, such as those of `OTEL_EXPORTER_OTLP_HEADERS`.

    Raises:
        ConfigurationError: *endpoint* is not such an URL.
    """

    def __init__(self, endpoint: str, headers: Mapping[str, str] | None = None) -> None:
        self.endpoint = checked_url(endpoint, "--otlp")
        self.sent = 0
        self.failed: Counter[str] = Counter()
        """How many requests failed, by what happened: `metrics: status 404`, an error's class."""
        self._headers = dict(headers or {})
        self._waiting: Queue[tuple[str, bytes, Mapping[str, str]] | None] = Queue(MOST_WAITING)
        self._thread = Thread(target=self._run, name="otel-llm-demo-forward", daemon=True)
        self._thread.start()

    def put(self, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send *body* on to that path of the endpoint, soon; never waits."""
        try:
            self._waiting.put_nowait((path, body, headers))
        except Full:
            self.failed["too slow"] += 1

    def close(self) -> None:
        """Wait until everything was sent, or for ten seconds; what is left then has failed."""
        with suppress(Full):
            self._waiting.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self.failed["too slow"] += self._waiting.qsize()

    def told(self) -> str:
        """One line on how it went; it names no header."""
        failed = sum(self.failed.values())
        if not failed:
            return f"Sent on to {address(self.endpoint)}: {self.sent} requests."
        why = ", ".join(f"{count} x {name}" for name, count in self.failed.most_common())
        where = address(self.endpoint)
        return f"Sent on to {where}: {self.sent} requests; {failed} failed ({why})."

    def _run(self) -> None:
        from requests import Session

        with Session() as session:
            while (item := self._waiting.get()) is not None:
                self._send(session, *item)

    def _send(self, session: Session, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        from requests import RequestException

        url, given = self.endpoint + path, {**headers, **self._headers}
        signal = path.rpartition("/")[2]
        try:
            status = session.post(url, data=body, headers=given, timeout=TIMEOUT_S).status_code
        except (RequestException, ValueError, UnicodeError) as error:
            self.failed[f"{signal}: {type(error).__name__}"] += 1
            return
        if 200 <= status < 300:
            self.sent += 1
        else:
            self.failed[f"{signal}: status {status}"] += 1


def checked_url(url: str, option: str) -> str:
    """*url* without a slash at its end; raises `ConfigurationError` if it is not http or https."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise ConfigurationError(f"{option} must be a URL like http://localhost:4318")
    return url.rstrip("/")
