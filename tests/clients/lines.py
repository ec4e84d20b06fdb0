"""What a call over loopback says of its network part."""

from __future__ import annotations

import struct
import sys
from types import SimpleNamespace
from typing import Any

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is Linux's")


def net(span: Any) -> dict[str, Any]:
    """What is said of the network, by the last part of the name."""
    found = span.attributes.items()
    return {key.rpartition(".")[2]: value for key, value in found if ".net." in key}


def is_near(found: dict[str, Any]) -> bool:
    """Whether the line is one over loopback, as far as this system tells."""
    if sys.platform != "linux":
        return "rtt_us" not in found
    # On a busy machine an acknowledgement may come too late even here.
    return 0 < found["rtt_us"] < 50_000 and found["rtt_var_us"] >= 0 <= found["retransmits"] < 5


def check_new(found: dict[str, Any]) -> None:
    """A connection was made for the call."""
    assert found["connection_reused"] is False
    assert 0 < found["connect_us"] < 5_000_000
    assert "tls_us" not in found
    assert is_near(found)


def check_reused(found: dict[str, Any]) -> None:
    """The call was sent over a connection that was there."""
    assert found["connection_reused"] is True
    assert not {"connect_us", "tls_us"} & set(found)
    assert is_near(found)


class Wire:
    """Stands for a socket: at each reading a millisecond slower, with one more segment lost."""

    def __init__(self) -> None:
        self.readings = 0

    def getsockopt(self, _level: int, _option: int, size: int) -> bytes:
        self.readings += 1
        return struct.pack("=68xII24xI", 1000 * self.readings, 10, self.readings)[:size]


def over(wire: Wire) -> dict[str, Any]:
    """The extensions of an httpx response that comes over it."""
    stream = SimpleNamespace(get_extra_info=lambda _name: wire)
    return {"http_version": b"HTTP/1.1", "network_stream": stream}
