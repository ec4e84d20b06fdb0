"""The network part of a client call, on the OpenAI client: real sockets, near and far."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import otel_llm
from otel_llm import guard, semconv
from otel_llm.clients import network
from otel_llm.emit.request import RequestInfo
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from otel_llm.timeline import Side
from tests.clients.builders import STREAMED, WHOLE, aclient, client, request, requests
from tests.clients.fixtures import Ask
from tests.clients.lines import Wire, check_new, check_reused, is_near, linux, net, over
from tests.clients.transport import Transport
from tests.clients.transport import client as without_network
from tests.fakes.openai_server import OpenAIServer, failing, serving, stream, whole, word

Serve = Callable[..., OpenAIServer]
BODIES = pytest.mark.parametrize(
    ("body", "answer"), [(STREAMED, stream()), (WHOLE, whole())], ids=["streamed", "whole"]
)


class TestParsing:
    """What the kernel writes, byte by byte."""

    def test_the_three_numbers(self) -> None:
        """They stand at bytes 68, 72 and 100, whatever follows."""
        words = [0] * 50
        words[17], words[18], words[25] = 20_000, 3_000, 4
        assert network.parsed(struct.pack("=50I", *words)) == (20_000, 3_000, 4)

    def test_no_sample_yet(self) -> None:
        """A round trip of 0 has not been measured; the count is known."""
        assert network.parsed(bytes(104)) == (None, None, 0)

    @given(data=st.integers(0, 300).flatmap(lambda size: st.binary(min_size=size, max_size=size)))
    def test_any_bytes(self, data: bytes) -> None:
        """Too short is unknown; anything else is three numbers of 32 bits."""
        found = network.parsed(data)
        assert (len(data) < 104) == (found is None)
        assert all(each is None or 0 <= each < 2**32 for each in found or ())


class TestSockets:
    """What stands in for a socket."""

    @linux
    def test_an_open_connection(self) -> None:
        """Its round trips have been measured by the handshake."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sock = socket.create_connection(listener.getsockname())
            found = network.tcp_info(sock)
            sock.close()
        assert found is not None
        assert found.rtt_us
        assert found.retransmits == 0

    def test_a_closed_socket(self) -> None:
        """Nothing is known, nothing is raised."""
        sock = socket.socket()
        sock.close()
        assert network.tcp_info(sock) is None

    def test_a_unix_socket(self) -> None:
        """The same."""
        one, other = socket.socketpair()
        with one, other:
            assert network.tcp_info(one) is None

    @pytest.mark.parametrize(
        "thing", [None, object(), "socket", Path()], ids=lambda each: type(each).__name__
    )
    def test_no_socket(self, thing: object) -> None:
        """The same."""
        assert network.tcp_info(thing) is None


@linux
class TestReadings:
    """When the kernel is asked, and what is a call's own of what it counts."""

    @pytest.fixture
    def call(self, captured: CapturedTelemetry) -> Callable[[Wire], dict[str, Any]]:
        """A call over a wire, from the headers of its reply to its end."""

        def made(wire: Wire) -> dict[str, Any]:
            live = captured.telemetry.start(RequestInfo("chat", "demo", "tiny"), Side.CLIENT)
            network.answered(live, SimpleNamespace(extensions=over(wire)))
            network.ended(live)
            live.finish()
            return net(requests(captured)[-1])

        return made

    def test_at_the_end(self, call: Callable[[Wire], dict[str, Any]]) -> None:
        """The second of two readings is written."""
        wire = Wire()
        assert call(wire) == {"rtt_us": 2000, "rtt_var_us": 10, "retransmits": 2}
        assert wire.readings == 2

    def test_of_a_later_call(self, call: Callable[[Wire], dict[str, Any]]) -> None:
        """What an earlier call over the same connection has lost is not counted again."""
        wire = Wire()
        call(wire)
        found = {"connection_reused": True, "rtt_us": 4000, "rtt_var_us": 10, "retransmits": 2}
        assert found == call(wire)

    def test_read_before_it_is_handed_over(self, captured: CapturedTelemetry) -> None:
        """A reply in one piece is asked about once, just before its connection goes back."""
        wire, sent = Wire(), dict[str, Any]()
        live = captured.telemetry.start(RequestInfo("chat", "demo", "tiny"), Side.CLIENT)
        network.watch(live, sent, is_async=False)
        sent["trace"]("connection.connect_tcp.started", {})
        made = {"return_value": over(wire)["network_stream"]}
        sent["trace"]("connection.connect_tcp.complete", made)
        sent["trace"]("http11.response_closed.started", {})
        network.answered(live, SimpleNamespace(extensions=over(wire)))
        live.finish()
        assert net(request(captured))["rtt_us"] == 1000


class TestOpenAI:
    """The OpenAI client, on httpx2."""

    @BODIES
    def test_sync(self, captured: CapturedTelemetry, body: Any, answer: Any) -> None:
        """The first call makes a connection, the second one uses it again."""
        with serving(answer) as server, client(server) as made:
            for _ in range(2):
                response = made.chat.completions.with_raw_response.create(**body)
                response.http_response.read()
        first, second = map(net, requests(captured))
        check_new(first)
        check_reused(second)

    @BODIES
    async def test_async(self, captured: CapturedTelemetry, body: Any, answer: Any) -> None:
        """The same, asynchronous."""
        with serving(answer) as server:
            async with aclient(server) as made:
                for _ in range(2):
                    response = await made.chat.completions.with_raw_response.create(**body)
                    await response.http_response.aread()
        first, second = map(net, requests(captured))
        check_new(first)
        check_reused(second)

    def test_read_item_by_item(self, captured: CapturedTelemetry, ask: Ask) -> None:
        """The library's own stream object, which closes the connection at its end."""
        list(ask(stream()))
        check_new(net(request(captured)))

    async def test_async_item_by_item(self, captured: CapturedTelemetry, aask: Ask) -> None:
        """The same, asynchronous."""
        assert [each async for each in await aask(stream())]
        check_new(net(request(captured)))

    def test_left(self, captured: CapturedTelemetry, ask: Ask) -> None:
        """A stream that was left, whose connection nobody has closed yet."""
        opened = ask(stream(100))
        for _ in opened:
            break
        check_new(net(request(captured)))

    @linux
    def test_left_is_asked_once_more(self, captured: CapturedTelemetry) -> None:
        """The kernel is asked when the headers have come, and when the stream is left."""
        wire = Wire()

        class Wired(Transport):
            def handle_request(self, request: httpx2.Request) -> httpx2.Response:
                made = super().handle_request(request)
                made.extensions.update(over(wire))
                return made

        transport = Wired()
        transport.pieces = [word()] * 3
        with without_network(transport) as made:
            for _ in made.chat.completions.create(**STREAMED):
                assert wire.readings == 1
                break
        assert net(request(captured))["rtt_us"] == 2000

    def test_closed_after_its_reply(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """A connection that is gone when the reply is handed over was asked before."""
        with client(serve(whole(headers={"connection": "close"}))) as made:
            made.chat.completions.create(**WHOLE)
        check_new(net(request(captured)))

    def test_opened_by_another_request(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """A connection is used again also where its first request was none of ours."""
        with client(serve(whole({}), whole())) as made:
            made.moderations.create(input="x")
            made.chat.completions.create(**WHOLE)
        check_reused(net(request(captured)))

    def test_refused(self, captured: CapturedTelemetry) -> None:
        """A connection that could not be made: how long that took, and no line to speak of."""
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            port = listener.getsockname()[1]
        made = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)
        with made, pytest.raises(openai.APIConnectionError):
            made.chat.completions.create(**WHOLE)
        found = net(request(captured))
        assert {"connection_reused", "connect_us"} == set(found)
        assert found["connection_reused"] is False

    def test_retried(self, captured: CapturedTelemetry) -> None:
        """Of several attempts the last one counts; its connection was there."""
        answers = failing(500, headers={"retry-after-ms": "1"}), whole()
        with serving(*answers) as server, client(server, max_retries=1) as made:
            made.chat.completions.create(**WHOLE)
        assert request(captured).attributes[semconv.ATTEMPTS] == 2
        check_reused(net(request(captured)))

    def test_another_transport(self, captured: CapturedTelemetry) -> None:
        """Without a network nothing is said of one."""
        transport = Transport()
        transport.pieces = stream().pieces[:1]  # type: ignore[assignment]
        with without_network(transport) as made:
            list(made.chat.completions.create(**STREAMED))
        assert net(request(captured)) == {}

    def test_not_recorded(self, serve: Serve) -> None:
        """A call that is not sampled goes out as it would without us."""
        off = captured_telemetry(sampler=ALWAYS_OFF)
        otel_llm.instrument(engines=["openai"], **off.providers)
        sent: list[Any] = []
        hooks = httpx2.Client(event_hooks={"request": [sent.append]})
        with client(serve(whole()), http_client=hooks) as made:
            made.chat.completions.create(**WHOLE)
        assert "trace" not in sent[0].extensions


class TestTheirCallback:
    """An application's own `trace` extension."""

    def test_sync(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """Is told everything, in order, and so are we."""
        events: list[str] = []

        class Tracing(httpx2.Client):
            def build_request(self, *args: Any, **kwargs: Any) -> httpx2.Request:
                made = super().build_request(*args, **kwargs)
                made.extensions["trace"] = lambda name, _info: events.append(name)
                return made

        with client(serve(whole()), http_client=Tracing()) as made:
            made.chat.completions.create(**WHOLE)
        assert events[:2] == ["connection.connect_tcp.started", "connection.connect_tcp.complete"]
        assert events[-1] == "http11.response_closed.complete"
        check_new(net(request(captured)))

    async def test_async(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """The same, awaited."""
        events: list[str] = []

        async def trace(name: str, _info: Any) -> None:
            events.append(name)

        class Tracing(httpx2.AsyncClient):
            def build_request(self, *args: Any, **kwargs: Any) -> httpx2.Request:
                made = super().build_request(*args, **kwargs)
                made.extensions["trace"] = trace
                return made

        async with aclient(serve(whole()), http_client=Tracing()) as made:
            await made.chat.completions.create(**WHOLE)
        assert events[0] == "connection.connect_tcp.started"
        assert events[-1] == "http11.response_closed.complete"
        check_new(net(request(captured)))

    def test_raising(self, captured: CapturedTelemetry, serve: Serve) -> None:
        """Its errors are the application's own."""

        def trace(name: str, _info: Any) -> None:
            if name.startswith("http11"):
                raise LookupError(name)

        class Tracing(httpx2.Client):
            def build_request(self, *args: Any, **kwargs: Any) -> httpx2.Request:
                made = super().build_request(*args, **kwargs)
                made.extensions["trace"] = trace
                return made

        made = client(serve(whole()), http_client=Tracing())
        with made, pytest.raises(LookupError, match="http11"):
            made.chat.completions.create(**WHOLE)
        assert not guard.failures


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key and a certificate of 127.0.0.1, in one file."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl is not here")
    made = tmp_path / "server.pem"
    wanted = "req -x509 -nodes -newkey rsa:2048 -subj /CN=x -addext subjectAltName=IP:127.0.0.1"
    given = [openssl, *wanted.split(), "-keyout", str(made), "-out", str(tmp_path / "cert")]
    subprocess.run(given, check=True, capture_output=True)
    made.write_bytes(made.read_bytes() + (tmp_path / "cert").read_bytes())
    return made


def test_tls(captured: CapturedTelemetry, serve: Serve, certificate: Path) -> None:
    """TLS takes its own time, and the kernel still tells of the socket below it."""
    server = serve(whole())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    trusting = httpx2.Client(verify=ssl.create_default_context(cafile=str(certificate)))
    url = server.url.replace("http:", "https:")
    with client(server, base_url=url, http_client=trusting) as made:
        made.chat.completions.create(**WHOLE)
    found = net(request(captured))
    assert found["connect_us"] > 0 < found["tls_us"]
    assert is_near(found)


@linux
def test_a_far_line() -> None:
    """A line of 20 ms that loses a packet of the first call."""
    told = _told("unshare", "-rn", sys.executable, "-m", "tests.clients.far", "line")
    found = told or _told(sys.executable, "-m", "tests.clients.far")
    first, second = found["calls"]
    assert [each[semconv.NET_REUSED] for each in found["calls"]] == [False, True]
    if found["real"]:
        assert first[semconv.NET_CONNECT_US] >= 20_000
        assert min(first[semconv.NET_RTT_US], second[semconv.NET_RTT_US]) >= 20_000
        assert first[semconv.NET_RETRANSMITS] >= 1
    else:
        assert all(0 < each[semconv.NET_RTT_US] < 50_000 for each in found["calls"])


def _told(*command: str) -> Any:
    """What a command prints, or None where it cannot be run."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        return None
    return json.loads(done.stdout)
