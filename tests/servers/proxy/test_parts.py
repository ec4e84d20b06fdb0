"""The parts of the proxy that need no network."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest

from otel_llm.emit.request import RequestInfo
from otel_llm.errors import ConfigurationError
from otel_llm.servers.proxy.admin import Admin
from otel_llm.servers.proxy.headers import end_to_end, upstream_headers
from otel_llm.servers.proxy.prefill import MOST_SIZES, LonePrefills
from otel_llm.servers.proxy.reading import Unpacked
from otel_llm.servers.proxy.routes import as_openai, inference_route
from otel_llm.servers.proxy.settings import (
    Address,
    Origin,
    ProxyEngine,
    ProxySettings,
    parse_address,
    parse_origin,
)
from otel_llm.testing import captured_telemetry
from otel_llm.timeline import Side

ORIGIN = Origin(Address("engine", 8000))
SCOPE: dict[str, Any] = {"client": ("10.0.0.9", 1), "scheme": "http"}


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("http://engine:8000", ORIGIN),
        ("engine:8000", ORIGIN),
        ("http://engine", Origin(Address("engine", 80))),
        ("https://engine/base/", Origin(Address("engine", 443), True, "/base")),
        ("http://[::1]:9", Origin(Address("::1", 9))),
    ],
)
def test_an_upstream(text: str, origin: Origin) -> None:
    """Scheme, host, port and path of the upstream."""
    assert parse_origin(text) == origin


@pytest.mark.parametrize(
    "text", ["", "ftp://a", "http://", "http://a:b", "http://me:secret@a", "http://a?x=1"]
)
def test_no_upstream(text: str) -> None:
    """What is no origin is refused, and not quoted: it may hold a password."""
    with pytest.raises(ConfigurationError, match="--upstream") as raised:
        parse_origin(text)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [("a:1", ("a", 1)), (":0", ("0.0.0.0", 0)), ("[::]:80", ("::", 80))],
)
def test_an_address(text: str, address: tuple[str, int]) -> None:
    """Host and port to listen on."""
    assert parse_address(text, "--listen") == address


@pytest.mark.parametrize("text", ["", "a", "a:", "a:x", "a:70000", "::1:80", "a:\u0663"])
def test_no_address(text: str) -> None:
    """Anything else names the option at fault."""
    with pytest.raises(ConfigurationError, match="--listen"):
        parse_address(text, "--listen")


@pytest.mark.parametrize(
    ("origin", "authority"),
    [
        (ORIGIN, "engine:8000"),
        (Origin(Address("engine", 80)), "engine"),
        (Origin(Address("engine", 443), True), "engine"),
        (Origin(Address("::1", 81)), "[::1]:81"),
    ],
)
def test_the_authority_of_an_upstream(origin: Origin, authority: str) -> None:
    """The scheme's own port is left out."""
    assert origin.authority == authority


def test_headers_of_one_hop_stay_here() -> None:
    """Those named by `Connection` are of one hop, too; all others pass in order."""
    kept = [(b"X-A", b"1"), (b"Set-Cookie", b"2"), (b"x-a", b"3")]
    hops = [(b"Connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"Keep-Alive", b"5"), (b"TE", b"")]
    assert end_to_end([*hops, *kept]) == kept


def test_a_body_has_one_framing() -> None:
    """A request that states a length beside its chunks goes on in chunks alone."""
    both = [(b"host", b"a"), (b"content-length", b"5"), (b"transfer-encoding", b"chunked")]
    assert upstream_headers(both, ProxySettings(ORIGIN), SCOPE) == [both[0], both[2]]


def test_a_body_that_unpacks_to_too_much() -> None:
    """Of a small body that unpacks to a large one, no more is unpacked than is read."""
    taken: list[int] = []

    class Inner:
        def took(self, data: bytes, came: float, accepted: float) -> None:
            taken.append(len(data))

        def ended(self, *, whole: bool) -> None:
            """Nothing."""

    live = captured_telemetry().telemetry.start(RequestInfo("chat", "vllm"), Side.PROXY)
    unpacked = Unpacked(live, Inner(), 31, 1_000)
    packed = gzip.compress(bytes(50_000_000))
    for start in range(0, len(packed), 5_000):
        unpacked.took(packed[start : start + 5_000], 0.0, 0.0)
    unpacked.ended(whole=True)
    assert sum(taken) == 1_001
    assert live.recorder.ended
    live.finish()


def test_a_host_is_kept_or_rewritten() -> None:
    """The upstream is asked under the client's name for it, or under its own."""
    headers = [(b"host", b"model.test")]
    kept = upstream_headers(headers, ProxySettings(ORIGIN), SCOPE)
    own = upstream_headers(headers, ProxySettings(ORIGIN, rewrite_host=True), SCOPE)
    none = upstream_headers([], ProxySettings(ORIGIN), SCOPE)
    assert (kept, own) == (headers, [(b"host", b"engine:8000")])
    assert none == own


def test_forwarded_for() -> None:
    """On request the upstream learns who asked whom; what proxies in front said stays."""
    settings = ProxySettings(ORIGIN, forwarded=True)
    headers = [
        (b"host", b"model.test"),
        (b"x-forwarded-for", b"1.2.3.4"),
        (b"x-forwarded-proto", b"https"),
    ]
    assert upstream_headers(headers, settings, SCOPE) == [
        (b"host", b"model.test"),
        (b"x-forwarded-proto", b"https"),
        (b"x-forwarded-for", b"1.2.3.4, 10.0.0.9"),
        (b"x-forwarded-host", b"model.test"),
    ]


@pytest.mark.parametrize(
    ("engine", "path", "operation"),
    [
        ("auto", "/v1/chat/completions", "chat"),
        ("ollama", "/api/embed", "embeddings"),
        ("auto", "/api/embeddings", "embeddings"),
        ("llama_cpp", "/completion", "text_completion"),
        ("tgi", "/", "text_completion"),
        ("auto", "/", None),
        ("vllm", "/completion", None),
        ("tgi", "/info", None),
    ],
)
def test_routes(engine: str, path: str, operation: str | None) -> None:
    """Engines have routes of their own beside the common ones."""
    found = inference_route(ProxyEngine(engine), "POST", path)
    assert (found and found.operation) == operation
    assert inference_route(ProxyEngine(engine), "GET", path) is None


def test_parameters_of_other_engines() -> None:
    """Objects in a body are opened; what the body says itself goes first."""
    body = {"options": {"num_predict": 5, "seed": 1}, "seed": 2}
    found = as_openai(body)
    assert (found["max_tokens"], found["seed"]) == (5, 2)


def test_prefill_of_lone_requests() -> None:
    """The median of those of the same size; a neighbouring size stands in."""
    seen = LonePrefills()
    assert seen.estimate("m", 1_000) is None
    for took in (10, 30, 20):
        seen.learn("m", 1_000, took)
    assert seen.estimate("m", 900) == 20
    assert seen.estimate("m", 400) == 20
    assert seen.estimate("m", 100_000) is None
    assert seen.estimate("other", 1_000) is None


def test_what_is_learned_is_bounded() -> None:
    """The models that were not seen for longest are forgotten."""
    seen = LonePrefills()
    for each in range(MOST_SIZES + 1):
        seen.learn(f"m{each}", 1, 1)
    assert seen.estimate("m0", 1) is None
    assert seen.estimate(f"m{MOST_SIZES}", 1) == 1


async def asked(line: str, *, healthy: bool = True, metrics: Any = None) -> bytes:
    """What the page for operators answers."""
    admin = Admin(lambda: healthy, metrics)
    server = await asyncio.start_server(admin.handle, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(f"{line} HTTP/1.1\r\nAccept: text/plain\r\n\r\n".encode())
        found = await reader.read()
        writer.close()
    return found


@pytest.mark.parametrize(
    ("line", "healthy", "status", "body"),
    [
        ("GET /healthz", True, 200, b"ok\n"),
        ("GET /healthz", False, 503, b"draining\n"),
        ("HEAD /healthz", True, 200, b""),
        ("POST /healthz", True, 405, b""),
        ("GET /other", True, 404, b"there are /healthz and /metrics\n"),
        ("GET /metrics", True, 404, b"there are /healthz and /metrics\n"),
    ],
)
async def test_the_page_for_operators(line: str, healthy: bool, status: int, body: bytes) -> None:
    """Health, and nothing else but metrics where there are some."""
    found = await asked(line, healthy=healthy)
    assert found.startswith(f"HTTP/1.1 {status} ".encode())
    assert found.endswith(b"\r\n\r\n" + body)


async def test_the_page_of_metrics() -> None:
    """It is made for what the client accepts."""
    found = await asked("GET /metrics?x=1", metrics=lambda accept: ("t/x", accept.encode()))
    assert found.endswith(b"\r\n\r\ntext/plain")
