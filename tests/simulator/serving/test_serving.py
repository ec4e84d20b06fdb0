"""What the simulated servers have in common: their truth, who leaves, and what goes wrong."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import httpx
import pytest

from otel_llm import semconv
from otel_llm.servers.asgi import InferenceMiddleware
from otel_llm.simulator import virtual
from otel_llm.simulator.engine import Engine, Output, Step
from otel_llm.simulator.serving import DIALECTS, OllamaApp, ServingApp, ServingConfig
from otel_llm.simulator.serving.go import rfc3339
from otel_llm.simulator.serving.http import LARGEST_BODY
from otel_llm.simulator.serving.tokens import Writer, chat_tokens, tokenize
from otel_llm.simulator.workload import Workload
from otel_llm.testing import captured_telemetry
from tests.simulator.serving.harness import MODEL, URL, app_of, engine_config

CHAT = "/v1/chat/completions"
ALL = sorted(DIALECTS)
Use = Callable[[ServingApp, httpx.AsyncClient], Awaitable[Any]]


def body(tokens: int = 5, **more: Any) -> dict[str, Any]:
    """A chat that every dialect takes."""
    messages = [{"role": "user", "content": "hi"}]
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, **more}


def using(dialect: str, use: Use, **app: Any) -> Any:
    """What *use* gives of a server and a client of it, on virtual time."""

    async def main() -> Any:
        clock = virtual.VirtualClock(asyncio.get_running_loop())
        server = app_of(dialect, clock, **app)
        async with virtual.InProcessTransport(server) as transport:
            http = httpx.AsyncClient(transport=transport, base_url=URL, timeout=600)
            return await use(server, http)

    return virtual.run(main())


async def leave_after(http: httpx.AsyncClient, pieces: int, tokens: int = 500) -> None:
    """Read some pieces of a stream and close it."""
    async with http.stream("POST", CHAT, json=body(tokens, stream=True)) as reply:
        async for _ in reply.aiter_raw():
            pieces -= 1
            if pieces == 0:
                return


@pytest.mark.parametrize("dialect", ALL)
def test_a_client_that_leaves_ends_its_request_in_the_engine(dialect: str) -> None:
    """At once, and the truth says so."""

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        await leave_after(http, 4)
        await asyncio.sleep(0)
        return app.engine.stats.running, app.driver.busy, app.truths[0]

    running, busy, truth = using(dialect, use)
    assert (running, busy) == (0, False)
    assert (truth.outcome, truth.status) == ("cancelled", 200)
    assert truth.engine[0].finish_reason == "abort"
    assert truth.finished_ns == truth.engine[0].finished_ns


@pytest.mark.parametrize("dialect", ALL)
def test_a_client_that_waits_for_a_whole_answer_may_leave_too(dialect: str) -> None:
    """Before anything was sent."""

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.0):
                await http.post(CHAT, json=body(500))
        await asyncio.sleep(0)
        return app.driver.busy, app.truths[0]

    busy, truth = using(dialect, use)
    assert not busy
    assert (truth.outcome, truth.status) == ("cancelled", None)


def test_telemetry_knows_how_far_a_request_came_that_was_left() -> None:
    """Queue and prefill are there, and decode is what was open."""

    async def main() -> Any:
        clock = virtual.VirtualClock(asyncio.get_running_loop())
        captured = captured_telemetry(clock=clock)
        app = InferenceMiddleware(app_of("vllm", clock), captured.telemetry)
        async with virtual.InProcessTransport(app) as transport:
            http = httpx.AsyncClient(transport=transport, base_url=URL)
            await leave_after(http, 4)
            await asyncio.sleep(1)
        return captured.span(f"chat {MODEL}").attributes

    told = virtual.run(main())
    assert (told[semconv.OUTCOME], told[semconv.ENDED_IN]) == ("cancelled", "decode")
    assert told[semconv.phase_us("prefill")] > 0


def test_telemetry_knows_that_a_request_was_left_in_its_prefill() -> None:
    """The engine tells when it begins, and not only with the first token."""

    async def main() -> Any:
        clock = virtual.VirtualClock(asyncio.get_running_loop())
        captured = captured_telemetry(clock=clock)
        app = InferenceMiddleware(app_of("vllm", clock), captured.telemetry)
        async with virtual.InProcessTransport(app) as transport:
            http = httpx.AsyncClient(transport=transport, base_url=URL, timeout=0.005)
            with pytest.raises(httpx.ReadTimeout):
                await http.post(CHAT, json=body(stream=True))
            await asyncio.sleep(1)
        return captured.span(f"chat {MODEL}").attributes

    assert virtual.run(main())[semconv.ENDED_IN] == "prefill"


@pytest.mark.parametrize("dialect", ALL)
def test_a_slow_reader_does_not_slow_the_engine(dialect: str) -> None:
    """What it was sent late was generated in time, all the same."""

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        text = b""
        async with http.stream("POST", CHAT, json=body(900, stream=True)) as reply:
            async for piece in reply.aiter_raw():
                text += piece
                if len(text) < 20_000:
                    await asyncio.sleep(1.0)
        return app.truths[0], text

    truth, text = using(dialect, use)
    gaps = {after[0] - before[0] for before, after in pairwise(truth.engine[0].output_ns)}
    assert max(gaps) < 20_000_000
    assert truth.last_delivered_ns - truth.mark("last_token_ns") > 1_000_000_000
    assert b"[DONE]" in text


def test_a_slow_reader_gets_what_waits_in_one_piece_from_vllm() -> None:
    """Tokens that nobody has taken are merged, and none is lost."""

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        async with http.stream("POST", CHAT, json=body(900, stream=True)) as reply:
            await asyncio.sleep(60)
            return app.truths[0], await reply.aread()

    truth, text = using("vllm", use, serving={"stop_share": 0.0})
    chunks = re.findall(rb'"delta":\{"content":"([^"]*)"', text)
    assert len(chunks) < 900
    assert 900 == len(b"".join(chunks).split()) == truth.engine[0].output_tokens


@pytest.mark.parametrize("dialect", ALL)
def test_a_body_that_is_too_large_is_refused(dialect: str) -> None:
    """413, and rejected."""

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        reply = await http.post(CHAT, content=b" " * (LARGEST_BODY + 1))
        return reply.status_code, app.truths[0].outcome, app.truths[0].error

    assert using(dialect, use) == (413, "rejected", "too_large")


@pytest.mark.parametrize(("dialect", "status"), [("ollama", 503), ("tgi", 429), ("vllm", 503)])
def test_a_full_queue_refuses(dialect: str, status: int) -> None:
    """With the status of the dialect; the engine's truth is kept, too."""

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        asks = [asyncio.ensure_future(http.post(CHAT, json=body())) for _ in range(3)]
        replies = await asyncio.gather(*asks)
        refused = next(each for each in app.truths if each.outcome == "rejected")
        return sorted(each.status_code for each in replies), refused

    config = engine_config(max_num_seqs=1, max_queued=1)
    statuses, refused = using(dialect, use, engine=config)
    assert status in statuses
    assert ("overloaded", status) == (refused.error, refused.status)
    assert refused.engine[0].finish_reason == "rejected"


@pytest.mark.parametrize(("dialect", "status"), [("ollama", 500), ("tgi", 424), ("vllm", 500)])
def test_an_engine_that_breaks_down_is_an_error(
    dialect: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the server, and not of the one who asked."""

    def broken(_self: Engine, _step: Step, _now_ns: int) -> list[Output]:
        raise ZeroDivisionError

    monkeypatch.setattr(Engine, "end_step", broken)

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        return (await http.post(CHAT, json=body())).status_code, app.truths[0].outcome

    assert (status, "error") == using(dialect, use)


@pytest.mark.parametrize("dialect", ALL)
def test_a_limit_of_open_requests_is_one_of_requests_at_the_same_time(dialect: str) -> None:
    """Those that have ended leave their place."""

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        await leave_after(http, 2)
        await asyncio.sleep(0)
        return [(await http.post(CHAT, json=body())).status_code for _ in range(2)]

    assert using(dialect, use, serving={"max_open": 1}) == [200, 200]


def test_several_sequences_are_generated_at_once() -> None:
    """`n` answers to each of two prompts, and the tokens of all."""

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        asked = {"model": MODEL, "prompt": ["one", "two"], "n": 2, "max_tokens": 4}
        return (await http.post("/v1/completions", json=asked)).json(), app.truths[0]

    answer, truth = using("vllm", use)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (2, 16)
    assert len(truth.engine) == 4


def test_a_request_without_a_limit_ends_by_itself() -> None:
    """After as many tokens as the seed says, the same in every run."""

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        asked = {key: value for key, value in body().items() if key != "max_tokens"}
        answer = (await http.post(CHAT, json=asked)).json()
        return answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]

    first = using("vllm", use)
    assert first[0] == "stop"
    assert first == using("vllm", use)


def test_only_the_latest_truths_are_kept() -> None:
    """Those of the engine go with them."""

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        for _ in range(5):
            await http.post(CHAT, json=body(1))
        return len(app.truths), len(app.engine.truths)

    assert using("vllm", use, serving={"keep_truths": 2}) == (2, 2)


def test_the_truth_names_the_trace() -> None:
    """As the `traceparent` that came says."""

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        sent = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
        await http.post(CHAT, json=body(), headers=sent)
        await http.post(CHAT, json=body(), headers={"traceparent": "nonsense"})
        return [(each.trace_id, each.parent_id) for each in app.truths]

    assert using("vllm", use) == [("a" * 32, "b" * 16), (None, None)]


def load_times(*pauses: float, **more: Any) -> list[int]:
    """How long the model was loaded for each of several requests, in whole seconds."""

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        for pause in pauses:
            await asyncio.sleep(pause)
            asked = {"model": MODEL, "prompt": "hi", "options": {"num_predict": 2}, **more}
            await http.post("/api/generate", json=asked)
        return [each.load_ns // 1_000_000_000 for each in app.truths]

    found: list[int] = using("ollama", use, load_s=3.0)
    return found


def test_a_model_is_loaded_once() -> None:
    """By the first request, and again by one that comes after five minutes."""
    assert load_times(0, 200, 301) == [3, 0, 3]


def test_a_model_may_be_kept_for_less_or_for_ever() -> None:
    """`keep_alive`, in seconds; below 0 is for ever."""
    assert load_times(0, 20, 40, keep_alive=30) == [3, 0, 3]
    assert load_times(0, 100_000, keep_alive=-1) == [3, 0]


def test_who_waits_for_another_ones_load_waited_for_it_too() -> None:
    """The load is part of every wait that it was in."""

    async def use(app: ServingApp, http: httpx.AsyncClient) -> Any:
        asks = [http.post(CHAT, json=body()) for _ in range(2)]
        await asyncio.gather(*asks)
        return [each.load_ns for each in app.truths]

    assert using("ollama", use) == [2_000_000_000, 2_000_000_000]


@pytest.mark.parametrize("tokens", [1, 2, 500])
def test_a_text_has_the_tokens_it_should(tokens: int) -> None:
    """What the writer writes, the tokenizer counts."""
    assert tokens == len(tokenize("".join(Writer("seed").words(tokens))))


def test_the_prompts_of_a_workload_have_the_tokens_they_should() -> None:
    """One for each word."""
    arrivals = Workload(5.0).arrivals(1, 20)
    assert [each.prompt_tokens for each in arrivals] == [
        len(tokenize(each.prompt)) for each in arrivals
    ]


def test_equal_heads_of_conversations_have_equal_tokens() -> None:
    """So that a cache of prefixes finds them."""
    said = [{"role": "user", "content": "one two three"}]
    more = [*said, {"role": "assistant", "content": [{"type": "text", "text": "four"}]}]
    short, long = chat_tokens(said), chat_tokens(more)
    assert short[:-1] == long[: len(short) - 1]
    assert len(long) == len(short) + 3


@pytest.mark.parametrize(
    ("wall_ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_767_225_600_123_456_789, "2026-01-01T00:00:00.123456789Z"),
        (1_767_225_600_120_000_000, "2026-01-01T00:00:00.12Z"),
    ],
)
def test_a_date_has_no_zeros_at_its_end(wall_ns: int, text: str) -> None:
    """As Go writes it."""
    assert text == rfc3339(wall_ns)


async def test_the_application_has_a_lifespan() -> None:
    """A server starts it and stops it."""
    app = OllamaApp(Engine(engine_config()), ServingConfig())
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[str] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_importing_loads_no_sdk_and_no_web_library() -> None:
    """They are loaded where they are used."""
    heavy = "{'httpx', 'uvicorn', 'numpy'}"
    code = (
        "import sys, otel_llm.simulator.serving, otel_llm.simulator.virtual;"
        f"found = {heavy} & {{name.partition('.')[0] for name in sys.modules}};"
        "found |= {name for name in sys.modules if name.startswith('opentelemetry.sdk')};"
        "sys.exit(str(found) if found else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("dialect", ALL)
def test_a_server_runs_on_a_real_socket(dialect: str) -> None:
    """It says when it is ready, streams, and ends when it is told to."""
    command = [sys.executable, "-m", "otel_llm.simulator.serving", "--port", "0"]
    command += ["--dialect", dialect, "--name", MODEL, "--speed", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        assert server.stdout.readline() == "ready\n"
        with httpx.stream("POST", address + CHAT, json=body(8, stream=True)) as reply:
            pieces = list(reply.iter_raw())
        os.kill(server.pid, signal.SIGINT)
        server.wait(20)
    assert reply.status_code == 200
    assert len(pieces) > 3
    assert b"[DONE]" in pieces[-1]
