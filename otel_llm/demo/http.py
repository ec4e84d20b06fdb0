"""Small questions to servers: are you there, and what have you got."""

from __future__ import annotations

import json
import socket
from typing import Any

TIMEOUT_S = 5.0


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def get_json(url: str) -> Any:
    """What *url* answers, read as JSON; raises `OSError` or `ValueError` if that fails."""
    from requests import get

    answer = get(url, timeout=TIMEOUT_S)
    answer.raise_for_status()
    return json.loads(answer.content)


def healthy(url: str) -> bool | None:
    """True if *url* answers 200, else None."""
    from requests import RequestException, get

    try:
        return get(url, timeout=TIMEOUT_S).ok or None
    except RequestException:
        return None
