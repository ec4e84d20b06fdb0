"""A minimal HTTP client for servers on this machine."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

# A proxy from the environment must never see traffic to loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Response:
    """An HTTP answer, read to its end; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body as a JSON value."""
        return json.loads(self.body)

    def events(self) -> list[str]:
        """Return the data lines of a server-sent event stream."""
        lines = self.body.decode().splitlines()
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def request(
    url: str,
    body: Any = None,
    *,
    headers: dict[str, str] | None = None,
    timeout: float = 60.0,
) -> Response:
    """Send a GET, or a POST with a JSON body; error statuses are answers, too."""
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json"} if data is not None else {}
    message = urllib.request.Request(url, data=data, headers=sent | (headers or {}))
    try:
        with _opener.open(message, timeout=timeout) as answer:
            return _read(answer.status, answer)
    except urllib.error.HTTPError as error:
        with error:
            return _read(error.code, error)


def _read(status: int, answer: Any) -> Response:
    """Read an answer to its end."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return Response(status, headers, answer.read())
