"""What is read from Ollama's replies, through its client: phases, field cases, recorded bytes."""

from __future__ import annotations

import json

import ollama
import pytest
from opentelemetry.trace import StatusCode

from otel_llm import semconv
from otel_llm.testing import CapturedTelemetry
from tests.adapters.ollama_fixtures import (  # noqa: F401 - fixtures among them
    ASKED,
    Client,
    Serve,
    captured_fixture,
    case,
    client_fixture,
    last_of,
    serve_fixture,
)
from tests.clients.builders import attributes, outcomes, request, requests
from tests.fakes.ollama_server import (
    chat,
    end,
    failing,
    line,
    lines,
    recorded,
    said,
    whole,
)


class TestPhases:
    """Where the time went: Ollama's durations, laid onto the marks that were seen."""

    MS = 1000

    @pytest.mark.parametrize("streamed", [False, True])
    def test_the_servers_own(
        self, captured: CapturedTelemetry, client: Client, streamed: bool
    ) -> None:
        """Load and prefill as the server states them, the queue as what they leave of the total."""
        answer = chat(first=0.06, gap=0.01) if streamed else whole(after=0.12)
        list(client(answer).chat(**ASKED, stream=streamed))
        found, ms = attributes(captured), self.MS
        assert (found[semconv.phase_us("load")], found[semconv.phase_us("prefill")]) == (
            10 * ms,
            30 * ms,
        )
        assert found[semconv.phase_us("queue")] == 20 * ms
        assert {"load=reported", "queue=estimated", "prefill=reported"} <= set(
            found[semconv.SOURCES].split(";")
        )

    def test_decode_of_a_whole_answer(self, captured: CapturedTelemetry, client: Client) -> None:
        """Without a stream only the server knows it."""
        client(whole(after=0.12)).chat(**ASKED)
        assert attributes(captured)[semconv.phase_us("decode")] == 40 * self.MS
        assert attributes(captured)[semconv.TPOT_US] == 10 * self.MS

    def test_they_add_up(self, captured: CapturedTelemetry, client: Client) -> None:
        """Phases and what nobody accounts for are the whole."""
        list(client(chat(first=0.06, gap=0.01)).chat(**ASKED, stream=True))
        found = attributes(captured)
        names = ("load", "queue", "prefill", "decode", "delivery", "unaccounted", "first_token")
        parts = [found.get(semconv.phase_us(name), 0) for name in names]
        assert sum(parts) == found[semconv.phase_us("e2e")]

    def test_what_cannot_be_true(self, captured: CapturedTelemetry, client: Client) -> None:
        """Durations longer than the request are cut, and what was said is kept."""
        long = end(prompt_eval_duration=9 * 10**9, total_duration=10 * 10**9)
        list(client(lines(0.02, said(), long)).chat(**ASKED, stream=True))
        found = attributes(captured)
        assert found[semconv.phase_us("prefill")] < found[semconv.phase_us("e2e")]
        assert "prefill=estimated" in found[semconv.SOURCES]


class TestCases:
    """Faults seen in the field, through the library and a socket."""

    @pytest.mark.parametrize("name", ["D-OLL-01-a.ndjson", "D-OLL-01-b.ndjson"])
    def test_a_call_on_any_line(
        self, captured: CapturedTelemetry, client: Client, name: str
    ) -> None:
        """D-OLL-01: the line with the call is the first token, the last one has the counts."""
        list(client(lines(0.05, case(name).pieces[0], *case(name).pieces[1:])).chat(
            **ASKED, stream=True
        ))  # fmt: skip
        found = attributes(captured)
        assert (found[semconv.INPUT_TOKENS], found[semconv.OUTPUT_TOKENS]) == (50, 14)
        assert found[semconv.FINISH_REASONS] == ("stop",)
        assert 50_000 <= found[semconv.TTFT_US] < 100_000

    def test_a_full_queue(self, captured: CapturedTelemetry, client: Client) -> None:
        """D-OLL-02: refused, with nothing of tokens; the retry is another span."""
        made = client(failing(503), chat(first=0.02))
        with pytest.raises(ollama.ResponseError):
            list(made.chat(**ASKED, stream=True))
        list(made.chat(**ASKED, stream=True))
        refused, answered = requests(captured)
        assert refused.status.status_code is StatusCode.ERROR
        told = refused.attributes
        assert (told[semconv.OUTCOME], told[semconv.ERROR_TYPE]) == ("rejected", "503")
        assert told[semconv.HTTP_STATUS] == 503
        absent = {semconv.TTFT_US, semconv.phase_us("queue"), semconv.INPUT_TOKENS}
        assert not absent & set(told)
        assert answered.attributes[semconv.OUTCOME] == "ok"
        assert answered.start_time >= refused.end_time
        assert answered.attributes[semconv.TTFT_US] < 100_000

    def test_thinking(self, captured: CapturedTelemetry, client: Client) -> None:
        """D-OLL-03: a thought without text is the first token; tokens are the server's count."""
        thoughts = [line(response="", thinking=each, done=False) for each in ("Let", " me")]
        answer = line(response="42", done=False)
        last = line(response="", done=True, done_reason="stop", eval_count=9)
        reply = client(lines(0.02, *thoughts, 0.1, answer, last)).generate(
            "tiny", "why?", stream=True, think=True
        )
        assert "".join(each.thinking or "" for each in reply) == "Let me"
        found = attributes(captured)
        assert found[semconv.TTFT_US] < 100_000
        assert found[semconv.OUTPUT_TOKENS] == 9

    def test_odd_times(self, captured: CapturedTelemetry, client: Client) -> None:
        """D-OLL-04: stamps of any form do no harm, and our clock is the one that counts."""
        list(client(case("D-OLL-04.ndjson")).generate("tiny", "x", stream=True))
        assert semconv.TTFT_US in attributes(captured)
        assert attributes(captured)[semconv.ERROR_TYPE] == "incomplete_stream"

    def test_an_error_line(self, captured: CapturedTelemetry, client: Client) -> None:
        """D-END-02: the library raises on it; it failed after its first token."""
        with pytest.raises(ollama.ResponseError):
            list(client(case("D-END-02.ndjson")).chat(**ASKED, stream=True))
        found = attributes(captured)
        assert (found[semconv.OUTCOME], request(captured).status.status_code) == (
            "error",
            StatusCode.ERROR,
        )
        assert found[semconv.ERROR_TYPE]
        assert semconv.TTFT_US in found
        assert not {semconv.OUTPUT_TOKENS, semconv.TPOT_US} & set(found)
        assert "runner" not in json.dumps(dict(found))


class TestRecorded:
    """What a real Ollama has answered."""

    @pytest.mark.parametrize(
        ("name", "reasons"),
        [
            ("chat", "length"),
            ("chat_stream", "length"),
            ("chat_thinking", "length"),
            ("chat_thinking_stream", "length"),
            ("chat_tools", None),
            ("chat_tools_stream", None),
        ],
    )
    def test_chats(
        self, captured: CapturedTelemetry, client: Client, name: str, reasons: str | None
    ) -> None:
        """The counts of the last line, and its times as far as the request had room for them."""
        list(client(recorded(name)).chat(**ASKED, stream=name.endswith("stream")))
        found, last = attributes(captured), last_of(name)
        assert found[semconv.INPUT_TOKENS] == last["prompt_eval_count"]
        assert found[semconv.OUTPUT_TOKENS] == last["eval_count"]
        assert found[semconv.FINISH_REASONS] == (reasons or last["done_reason"],)
        assert {"load", "queue", "prefill", "decode"} <= {
            each.partition("=")[0] for each in found[semconv.SOURCES].split(";")
        }

    @pytest.mark.parametrize("name", ["generate", "generate_stream", "generate_json", "load"])
    def test_prompts(self, captured: CapturedTelemetry, client: Client, name: str) -> None:
        """Answers to prompts; a model that is only loaded answers nothing."""
        list(client(recorded(name)).generate("tiny", "x", stream=name.endswith("stream")))
        assert outcomes(captured) == ["ok"]
        assert attributes(captured).get(semconv.OUTPUT_TOKENS) == last_of(name).get("eval_count")

    def test_embeddings(self, captured: CapturedTelemetry, client: Client) -> None:
        """Both of its routes."""
        client(recorded("embed")).embed("tiny", ["a", "b"])
        client(recorded("embeddings")).embeddings("tiny", "a")
        new, old = requests(captured)
        assert (new.attributes[semconv.INPUT_TOKENS], outcomes(captured)) == (9, ["ok", "ok"])
        assert semconv.INPUT_TOKENS not in old.attributes

    @pytest.mark.parametrize(
        ("name", "status"),
        [("chat_unknown", "404"), ("chat_cannot_think", "400"), ("generate_overloaded", "503")],
    )
    def test_refusals(
        self, captured: CapturedTelemetry, client: Client, name: str, status: str
    ) -> None:
        """The status is the reason."""
        with pytest.raises(ollama.ResponseError):
            client(recorded(name)).chat(**ASKED)
        assert (outcomes(captured), attributes(captured)[semconv.ERROR_TYPE]) == (
            ["rejected"],
            status,
        )
