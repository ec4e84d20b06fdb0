"""The network part of a client call: how its connection was made, and how the line is.

httpx and httpx2 tell in their `trace` extension when they connect; one callback keeps the times.
The kernel tells the rest of a socket that can be reached (Linux, `TCP_INFO`): it is asked when the
reply's headers have come, and again at the end. What is unknown is absent, and nothing is done for
a span that is not recorded.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from otel_llm import semconv
from otel_llm.emit.live import LiveRequest
from otel_llm.guard import guard

_OPTION = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
_TCP_INFO = struct.Struct("=68xII24xI")
"""`tcpi_rtt`, `tcpi_rttvar` and `tcpi_total_retrans` of Linux's `struct tcp_info`."""


class Tcp(NamedTuple):
    """What the kernel measures on one connection; times in microseconds, None is unknown."""

    rtt_us: int | None
    rtt_var_us: int | None
    retransmits: int
    """Segments that this side has sent again since the connection was opened."""


def parsed(data: bytes) -> Tcp | None:
    """A `struct tcp_info`, or None if it is too short; newer kernels append to it."""
    if len(data) < _TCP_INFO.size:
        return None
    rtt, variance, retransmits = _TCP_INFO.unpack_from(data)
    return Tcp(rtt, variance, retransmits) if rtt else Tcp(None, None, retransmits)


def tcp_info(sock: Any) -> Tcp | None:
    """What the kernel knows of *sock*, or None: closed, no TCP, another system. Never raises."""
    if sock is None or _OPTION is None:
        return None
    try:
        return parsed(sock.getsockopt(socket.IPPROTO_TCP, _OPTION, _TCP_INFO.size))
    except Exception:  # noqa: BLE001 - whatever stands in for a socket there
        return None


class Connection:
    """The connection of one attempt of a call; as a callable it is the `trace` extension.

    It knows its request only weakly, since responses, which the application may keep, hold it.
    """

    __slots__ = (
        "__weakref__",
        "_before",
        "_began",
        "_clock",
        "_connect_us",
        "_dns_us",
        "_live",
        "_over",
        "_reused",
        "_socket",
        "_tcp",
        "_theirs",
        "_tls_us",
        "find",
    )

    def __init__(self, live: LiveRequest, theirs: Callable[[str, Any], Any]) -> None:
        self._live = live.reference
        self._clock = live.recorder.clock.monotonic_ns
        self._theirs = theirs
        self._began: tuple[int, ...] = ()
        self._dns_us: int | None = None
        self._connect_us: int | None = None
        self._tls_us: int | None = None
        self._reused: bool | None = None
        self._socket: Any = None
        self._over = False
        """Whether the connection was read just before it went back, or was closed."""
        self._before = 0
        self._tcp: Tcp | None = None
        self.find: Callable[[], Any] = _nowhere
        """Finds the response, once its body is asked for, where nobody hands it over."""

    def __call__(self, event: str, info: Any) -> Any:
        """Note one event; returns what the application's own callback does, which may raise."""
        note = _EVENTS.get(event)
        if note is not None:
            with guard("client.network"):
                note(self, info)
        return self._theirs(event, info)

    def begins(self, _info: Any) -> None:
        """A step of connecting begins."""
        self._began += (self._clock(),)

    def resolved(self, _info: Any) -> None:
        """The host's addresses are known; to find them is a part of connecting."""
        self._dns_us = (self._dns_us or 0) + self._taken()

    def connected(self, info: Any) -> None:
        """The connection was made, or failed; another host may follow, and the times add up."""
        self._connect_us = (self._connect_us or 0) + self._taken()
        self._opened(info)

    def secured(self, info: Any) -> None:
        """TLS was agreed on, or failed."""
        self._tls_us = (self._tls_us or 0) + self._taken()
        self._opened(info)

    def sends(self, _info: Any) -> None:
        """The request is sent: over a connection that was there if none was made for it."""
        self._over = False
        if self._reused is None:
            self._reused = True

    def shares(self, _info: Any) -> None:
        """As `sends`, over a connection on which others send, too: the kernel tells of them all."""
        self._socket = None
        self.sends(None)

    def asks(self, _info: Any) -> None:
        """The body of the response is about to be read."""
        if self._socket is None and (response := self.find()) is not None:
            self.seen(response)

    def closes(self, _info: Any) -> None:
        """The response is about to be closed, and its connection maybe, too."""
        self.read()
        self._over = self._socket is not None

    def seen(self, response: Any) -> None:
        """The headers of *response* have come."""
        if self._over:  # a body that was read before anybody got the response
            return
        if self._reach(_socket_of(response)) and self._reused is None:
            self._reused = _is_reused(self._socket, response)
        self.read()

    def ended(self) -> None:
        """Nothing more will be said; whoever keeps the response keeps no socket of ours."""
        if not self._over:
            self.read()
        self._socket = None

    def read(self) -> None:
        """Ask the kernel how the connection is now, and write down all that is known."""
        live = self._live()
        if live is None or live.finished:
            self._socket = None
            return
        if (tcp := tcp_info(self._socket)) is not None:
            self._tcp = tcp
            with suppress(TypeError):  # it takes no weak references
                _retransmits[self._socket] = tcp.retransmits
        live.annotate(self._known())

    def _taken(self) -> int:
        *before, began = self._began
        self._began = (*before,)
        return (self._clock() - began) // 1000

    def _opened(self, info: Any) -> None:
        self._reused = False
        stream = info.get("return_value")
        if stream is not None:
            self._reach(stream.get_extra_info("socket"))
        else:
            self.read()

    def _reach(self, sock: Any) -> bool:
        """Whether *sock* is there, and is another one than that we knew."""
        sock = getattr(sock, "_sock", sock)  # asyncio hands out a wrapper
        if sock is None or sock is self._socket:
            return False
        self._socket = sock
        self._before = _sent_again(sock) or 0
        return True

    def _known(self) -> dict[str, object]:
        rtt, variance, total = self._tcp or (None, None, None)
        return {
            semconv.NET_REUSED: self._reused,
            semconv.NET_DNS_US: self._dns_us,
            semconv.NET_CONNECT_US: self._connect_us,
            semconv.NET_TLS_US: self._tls_us,
            semconv.NET_RTT_US: rtt,
            semconv.NET_RTT_VAR_US: variance,
            semconv.NET_RETRANSMITS: None if total is None else max(0, total - self._before),
        }


def _nowhere() -> None:
    return None


def _quiet(_event: str, _info: Any) -> None:
    return None


async def _quiet_async(_event: str, _info: Any) -> None:
    return None


_connections: WeakKeyDictionary[LiveRequest, Connection] = WeakKeyDictionary()
_retransmits: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""By socket, as of its latest reading: what a later call finds above it is its own."""
_RESOLVED = "connection.resolve.complete"
_EVENTS: dict[str, Callable[[Connection, Any], None]] = {
    _RESOLVED: Connection.resolved,
    "http11.send_request_headers.started": Connection.sends,
    "http2.send_request_headers.started": Connection.shares,
    "http2.response_closed.started": Connection.closes,
    "http11.receive_response_body.started": Connection.asks,
    "http11.response_closed.started": Connection.closes,
}
for _place, _step, _note in (
    ("connection", "connect_tcp", Connection.connected),
    ("connection", "connect_unix_socket", Connection.connected),
    ("socks", "connect_tcp", Connection.connected),
    ("connection", "start_tls", Connection.secured),
    ("socks", "start_tls", Connection.secured),
    ("proxy", "start_tls", Connection.secured),
):
    _EVENTS[f"{_place}.{_step}.started"] = Connection.begins
    _EVENTS[f"{_place}.{_step}.complete"] = _EVENTS[f"{_place}.{_step}.failed"] = _note


_SIGNALS = {
    "on_connection_create_start": "connection.connect_tcp.started",
    "on_dns_resolvehost_start": "connection.connect_tcp.started",
    "on_dns_resolvehost_end": _RESOLVED,
    "on_connection_create_end": "connection.connect_tcp.complete",
    "on_connection_reuseconn": "http11.send_request_headers.started",
}
"""aiohttp's signals, and the events that say the same; a connection is made with its TLS."""


def watch(live: LiveRequest, extensions: MutableMapping[str, Any], *, is_async: bool) -> None:
    """An attempt is about to be sent with these request *extensions* of httpx or httpx2.

    Args:
        live: The open request; one that is not recorded is left alone.
        extensions: Get a `trace` callback, which calls the application's own one.
        is_async: Whether the client is asynchronous.
    """
    if live.span.is_recording():
        with guard("client.network"):
            theirs = extensions.get("trace") or (_quiet_async if is_async else _quiet)
            extensions["trace"] = _connections[live] = Connection(live, theirs)


def watch_session(live: LiveRequest, config: Any) -> None:
    """As `watch`, for a session of aiohttp that is made for one call, with this `TraceConfig`."""
    if live.span.is_recording():
        with guard("client.network"):
            made = _connections[live] = Connection(live, _quiet)
            for signal, event in _SIGNALS.items():
                getattr(config, signal).append(_signalled(made, event))


def _signalled(connection: Connection, event: str) -> Any:
    async def told(_session: Any, _context: Any, _params: Any) -> None:
        connection(event, {})

    return told


def answered(live: LiveRequest, response: Any) -> None:
    """The headers of *response* have come: one of httpx, httpx2, requests or aiohttp."""
    if live.span.is_recording():
        with guard("client.network"):
            connection = _connections.get(live)
            if connection is None:
                connection = _connections[live] = Connection(live, _quiet)
            connection.seen(response)


def find(live: LiveRequest, response: Callable[[], Any]) -> None:
    """Where the response of a watched stream is to be found, which must not be held by it."""
    if (connection := _connections.get(live)) is not None:
        connection.find = response


def ended(live: LiveRequest) -> None:
    """The request is about to end: read its connection once more, if it is still there."""
    if live.span.is_recording() and (connection := _connections.pop(live, None)) is not None:
        with guard("client.network"):
            connection.ended()


def _socket_of(response: Any) -> Any:
    """The socket over which *response* comes, or None; others use it, too, with HTTP/2."""
    try:
        if hasattr(response, "extensions"):  # httpx
            alone = response.extensions["http_version"] != b"HTTP/2"
            return response.extensions["network_stream"].get_extra_info("socket") if alone else None
        if hasattr(response, "raw"):  # requests; the second is there where nothing is kept alive
            held = getattr(response.raw, "_connection", None)
            return getattr(held, "sock", None) or response.raw._fp.fp.raw._sock  # noqa: SLF001
        return response.connection.transport.get_extra_info("socket")  # aiohttp
    except Exception:  # noqa: BLE001 - whatever cannot be reached is unknown
        return None


def _sent_again(sock: Any) -> int | None:
    """How many segments had been sent again over *sock* at its latest reading, or None."""
    try:
        return _retransmits.get(sock)
    except TypeError:  # it takes no weak references
        return None


def _is_reused(sock: Any, response: Any) -> bool | None:
    """Whether *sock* had carried a request before this one, or None where nobody can tell."""
    if _sent_again(sock) is not None:
        return True
    pool: Any = getattr(getattr(response, "raw", None), "_pool", None)
    try:  # no more requests than connections: none of them was used again
        return False if pool.num_requests <= pool.num_connections else None
    except (AttributeError, TypeError):  # not of urllib3
        return None
