"""What changes in the headers on their way through: those of one hop, and what was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from otel_llm.servers.proxy.settings import ProxySettings

Pairs = Iterable[tuple[bytes, bytes]]
_ONE_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
"""RFC 9110, 7.6.1, and what is agreed on beside it."""
_EXPECT = frozenset({b"expect"})
"""The server has answered it (`100 Continue`)."""
_LENGTH = b"content-length"


def end_to_end(headers: Pairs, further: frozenset[bytes] = frozenset()) -> list[Any]:
    """*headers* without those that are meant for one hop, and without *further*."""
    gone = _ONE_HOP | further
    pairs = [(name.lower(), name, value) for name, value in headers]
    for lower, _, value in pairs:
        if lower == b"connection":
            gone |= {each.strip().lower() for each in value.split(b",")}
    return [(name, value) for lower, name, value in pairs if lower not in gone]


def size_of(headers: Pairs) -> int:
    """How long headers are on the wire, bytes, about."""
    return sum(len(name) + len(value) + 4 for name, value in headers)


def upstream_headers(
    headers: Pairs, settings: ProxySettings, scope: Any
) -> list[tuple[bytes, bytes]]:
    """The headers of a request as they go on."""
    pairs = list(headers)
    chunked = any(name.lower() == b"transfer-encoding" for name, _ in pairs)
    found = end_to_end(pairs, _EXPECT | {_LENGTH} if chunked else _EXPECT)
    found = with_host(found, settings)
    if chunked:
        found.append((b"transfer-encoding", b"chunked"))
    return forwarded(found, scope) if settings.forwarded else found


def with_host(headers: list[tuple[bytes, bytes]], settings: ProxySettings) -> list[Any]:
    """*headers* with one `Host`: the client's, or the upstream's own."""
    given = any(name.lower() == b"host" for name, _ in headers)
    if given and not settings.rewrite_host:
        return headers
    rest = [each for each in headers if each[0].lower() != b"host"]
    return [(b"host", settings.upstream.authority.encode("latin-1")), *rest]


def forwarded(headers: list[tuple[bytes, bytes]], scope: Any) -> list[tuple[bytes, bytes]]:
    """*headers* with who asked, how and whom; those of proxies in front stay."""
    known = {name.lower(): value for name, value in headers}
    client, host = scope.get("client"), known.get(b"host", b"")
    chain = known.get(b"x-forwarded-for", b"")
    peer = client[0].encode("latin-1") if client else b"unknown"
    found = [each for each in headers if each[0].lower() != b"x-forwarded-for"]
    found.append((b"x-forwarded-for", chain + b", " + peer if chain else peer))
    for name, value in (
        (b"x-forwarded-proto", scope.get("scheme", "http").encode()),
        (b"x-forwarded-host", host),
    ):
        if name not in known and value:
            found.append((name, value))
    return found
