"""HTTP responses watched in place: how they are left, and that they stay what they were."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import pytest
import requests as requests_library
from opentelemetry.trace import StatusCode

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.clients.builders import attributes, requests, soon
from tests.clients.home_made import (  # noqa: F401 - fixtures among them
    CUT,
    IDLE,
    LONG,
    Server,
    abandoned,
    captured_fixture,
    ended,
    server_fixture,
    surroundings,
    traced,
)
from tests.fakes.openai_server import (
    ROLE,
    Answer,
    failing,
    hanging,
    stream,
    whole,
    word,
)


class Opened:
    """A streamed response of one of the libraries, and how it is read and closed."""

    def __init__(self, library: str, url: str, timeout: float = 10) -> None:
        self.client: Any
        if library == "requests":
            self.client = requests_library.Session()
            self.response: Any = self.client.post(url, json={}, stream=True, timeout=timeout)
        else:
            module = {"httpx": httpx, "httpx2": httpx2}[library]
            self.client = module.Client(timeout=timeout)
            asked = self.client.build_request("POST", url, json={})
            self.response = self.client.send(asked, stream=True)

    def close(self) -> None:
        """Close the response and the client."""
        if self.response is not None:
            self.response.close()
        self.client.close()


@pytest.fixture(params=["httpx", "httpx2", "requests"], name="opened")
def opened_fixture(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    """Opens a response: `opened(answer)`."""
    made: list[Opened] = []

    def call(answer: Answer, **options: Any) -> Opened:
        made.append(Opened(request.param, server(answer), **options))
        return made[-1]

    yield call
    for each in made:
        each.close()


Open = Callable[..., Opened]


class TestExits:
    """Ways to leave the body of a response, sync."""

    def test_break(self, captured: CapturedTelemetry, opened: Open) -> None:
        """The reader leaves its loop; the request lasts until the block is left."""
        held = opened(LONG)
        with traced() as r:
            for _ in r.response(held.response).iter_lines():
                break
            assert not requests(captured)
        assert abandoned(captured)

    def test_close(self, captured: CapturedTelemetry, opened: Open) -> None:
        """Closed unread."""
        held = opened(LONG)
        with traced() as r:
            r.response(held.response).close()
        assert abandoned(captured)

    def test_close_in_the_middle(self, captured: CapturedTelemetry, opened: Open) -> None:
        """Closed while a loop is on it."""
        held = opened(LONG)
        with traced() as r:
            lines = r.response(held.response).iter_lines()
            next(lines)
            held.response.close()
        assert abandoned(captured)
        del lines

    def test_drop_unread(self, captured: CapturedTelemetry, opened: Open) -> None:
        """Dropped unread: ended at once, although the traced request is held."""
        held = opened(LONG)
        with traced() as r:
            r.response(held.response)
        assert not requests(captured)
        held.response = None
        assert soon(lambda: bool(requests(captured)), 0.5) or gc.collect() >= 0
        assert soon(lambda: bool(requests(captured)))
        assert abandoned(captured)
        assert r is not None

    # Whoever drops a response of requests unread leaves its socket to the collector.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.filterwarnings("ignore::ResourceWarning")
    def test_drop_in_the_middle(self, captured: CapturedTelemetry, opened: Open) -> None:
        """Dropped after its first words, of which the time is known."""
        held = opened(LONG)
        with traced() as r:
            lines = r.response(held.response).iter_lines()
            for _ in range(8):
                next(lines)
        held.response = lines = None
        gc.collect()
        assert soon(lambda: bool(requests(captured)))
        assert abandoned(captured)
        assert semconv.TTFT_US in attributes(captured)

    def test_connection_lost(self, captured: CapturedTelemetry, opened: Open) -> None:
        """The library's own error passes and is the request's."""
        held = opened(CUT)
        errors = (httpx.HTTPError, httpx2.HTTPError, requests_library.RequestException)
        with pytest.raises(errors) as raised, traced() as r:
            list(r.response(held.response).iter_lines())
        kind = type(raised.value)
        assert attributes(captured)[semconv.ERROR_TYPE] == f"{kind.__module__}.{kind.__qualname__}"
        assert ended(captured, "error", StatusCode.ERROR)

    def test_cut_at_a_boundary(self, captured: CapturedTelemetry, opened: Open) -> None:
        """A body that ends in good order, but without its end record and terminator."""
        held = opened(Answer((ROLE, word(), word())))
        with traced() as r:
            list(r.response(held.response).iter_lines())
        assert attributes(captured)[semconv.ERROR_TYPE] == "incomplete_stream"

    def test_timeout(self, captured: CapturedTelemetry, opened: Open) -> None:
        """Silence in the middle."""
        held = opened(hanging(), timeout=0.2)
        with pytest.raises(Exception, match=r"(?i)timed out"), traced() as r:
            list(r.response(held.response).iter_lines())
        assert ended(captured, "error", StatusCode.ERROR)

    def test_no_terminator(self, captured: CapturedTelemetry, opened: Open) -> None:
        """D-END-01: after the end record the server says no more; the wait is no decode."""
        held = opened(IDLE, timeout=0.3)
        with pytest.raises(Exception, match=r"(?i)timed out"), traced() as r:
            list(r.response(held.response).iter_lines())
        assert ended(captured, "ok", StatusCode.UNSET)
        found = attributes(captured)
        assert found[semconv.FINISH_REASONS] == ("stop",)
        assert found[semconv.phase_us("decode")] < 200_000
        assert found[semconv.phase_us("delivery")] > 200_000

    def test_read_to_the_end_inside_the_block(
        self, captured: CapturedTelemetry, opened: Open
    ) -> None:
        """What is done with the reply belongs to the request until the block is left."""
        held = opened(stream())
        with traced() as r:
            list(r.response(held.response).iter_lines())
            assert not requests(captured)
        assert ended(captured, "ok", StatusCode.UNSET)

    def test_read_after_the_block(self, captured: CapturedTelemetry, opened: Open) -> None:
        """A response that leaves the block takes the request with it."""
        held = opened(stream())
        with traced() as r:
            response = r.response(held.response)
        assert not requests(captured)
        list(response.iter_lines())
        assert ended(captured, "ok", StatusCode.UNSET)

    def test_error_status_and_no_reading(self, captured: CapturedTelemetry, opened: Open) -> None:
        """`raise_for_status` leaves the block; the status is the reason."""
        held = opened(failing(429))
        with pytest.raises(Exception, match="429"), traced() as r:
            r.response(held.response).raise_for_status()
        assert ended(captured, "rejected", StatusCode.ERROR)
        assert attributes(captured)[semconv.ERROR_TYPE] == "429"

    def test_an_error_after_the_reply(self, captured: CapturedTelemetry, opened: Open) -> None:
        """What the application does wrong with a whole reply is not the model's fault."""
        held = opened(stream())

        def work() -> None:
            with traced() as r:
                list(r.response(held.response).iter_lines())
                raise KeyError

        with pytest.raises(KeyError):
            work()
        assert ended(captured, "ok", StatusCode.UNSET)


class TestSameObject:
    """A watched response is the response that it was."""

    def test_identity_and_type(self, captured: CapturedTelemetry, opened: Open) -> None:
        """The same object, an instance of its class, with the same attributes."""
        held = opened(stream())
        kind, status = type(held.response), held.response.status_code
        with traced() as r:
            given = r.response(held.response)
            assert given is held.response
            assert isinstance(given, kind)
            assert (type(given).__name__, repr(given)) == (
                kind.__name__,
                "<Response [200 OK]>",
            ) or (repr(given) == "<Response [200]>")
            assert (given.status_code, dict(given.headers)["content-type"]) == (
                status,
                "text/event-stream",
            )
            given.close()

    def test_twice(self, captured: CapturedTelemetry, opened: Open) -> None:
        """Handed over twice, it is watched once."""
        held = opened(stream())
        kind = type(held.response)
        with traced() as r:
            r.response(r.response(held.response))
            assert type(held.response).__bases__ == (kind,)
            list(held.response.iter_lines())
        assert ended(captured, "ok", StatusCode.UNSET)

    def test_nothing_keeps_it_alive(self, captured: CapturedTelemetry, opened: Open) -> None:
        """It dies when it is dropped."""
        held = opened(stream())
        with traced() as r:
            r.response(held.response).close()
        watched = weakref.ref(held.response)
        held.response = None
        gc.collect()
        assert watched() is None

    def test_read_again(self, captured: CapturedTelemetry, opened: Open) -> None:
        """A body that was read is there to be read again, and counts once."""
        held = opened(whole())
        with traced() as r:
            response = r.response(held.response)
            body = response.content if held.client.__module__[:8] == "requests" else response.read()
            assert b"".join(getattr(response, "iter_bytes", response.iter_lines)()) == body
            assert response.json()["usage"]["completion_tokens"] == 5
        assert attributes(captured)[semconv.OUTPUT_TOKENS] == 5


def test_requests_pickles(captured: CapturedTelemetry, server: Server) -> None:
    """A pickled response is a plain one, with its body."""
    with traced() as r:
        response = r.response(requests_library.post(server(whole()), json={}, timeout=9))
        copy = pickle.loads(pickle.dumps(response))  # noqa: S301 - our own bytes
    assert type(copy) is requests_library.Response
    assert copy.json() == response.json()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_requests_pickles_a_stream(
    captured: CapturedTelemetry, server: Server, protocol: int
) -> None:
    """Pickling reads the body first, as ever, and that is noticed."""
    with requests_library.Session() as session, traced() as r:
        response = r.response(session.post(server(stream()), json={}, stream=True))
        copy = pickle.loads(pickle.dumps(response, protocol))  # noqa: S301 - our own bytes
    assert type(copy) is requests_library.Response
    assert copy.content == response.content
    assert attributes(captured)[semconv.OUTPUT_TOKENS] == 5


def test_requests_wrong_use_fails_as_before(captured: CapturedTelemetry, server: Server) -> None:
    """A bad argument is an error of the call, and not of the first read."""
    with requests_library.Session() as session, traced() as r:
        response = r.response(session.post(server(stream()), json={}, stream=True))
        with pytest.raises(TypeError):
            response.iter_content("many")
        response.close()
