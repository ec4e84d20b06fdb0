"""Field cases of kinds END, USE, OLL and TIM-03, TIM-05: what replies say, and how they end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.replies import Reply, epoch_ns, read_headers
from otel_llm.timeline import Outcome, Phase, Timeline, Tokens
from tests.replies.builders import (
    annotated,
    case,
    items,
    played,
    replayed,
    reply_of,
    resolved,
    text_of,
)

MS = 1000


def outcome(found: Timeline) -> tuple[Outcome, str | None]:
    """Outcome and error type."""
    return found.outcome, found.error_type


class TestEnds:
    """Kind END: how streams end, and what fails after HTTP 200."""

    def test_a_terminator_that_never_comes(self) -> None:
        """D-END-01: the idle minute before a time-out is not decode, and the reply is complete."""
        found = replayed("D-END-01.timeline.json")
        assert found.duration_us(Phase.DECODE) == 50 * MS
        assert (found.finish_reasons, found.outcome) == (("stop",), Outcome.OK)
        assert found.duration_us(Phase.DELIVERY) == 60_050 * MS

    def test_an_error_line_of_ollama(self) -> None:
        """D-END-02: an error and nothing else ends a stream of good lines as a failure."""
        found = resolved(items("D-END-02.ndjson"))
        assert outcome(found) == (Outcome.ERROR, "stream_error")
        assert (found.ttft_us, found.tpot_us, found.tokens) == (10 * MS, None, Tokens())

    def test_an_error_line_leaks_no_message(self) -> None:
        """D-END-02: the text of the error is nowhere in what is written."""
        reply = reply_of(items("D-END-02.ndjson"))
        assert "runner" not in repr((annotated(reply), reply.error))

    def test_an_abort_dressed_as_an_answer(self) -> None:
        """D-END-03: the finish reason stays, and is no success in spite of the terminator."""
        found = resolved(items("D-END-03.sse"))
        assert outcome(found) == (Outcome.ERROR, "abort")
        assert found.finish_reasons == ("abort",)

    def test_an_error_event_of_tgi_comes_first(self) -> None:
        """D-END-04 a: a request that was not valid is refused, and has no first token."""
        found = resolved(items("D-END-04-a.sse"))
        assert outcome(found) == (Outcome.REJECTED, "validation")
        assert found.ttft_us is None

    def test_an_error_event_of_tgi_after_a_token(self) -> None:
        """D-END-04 b: what would be a refusal is an error once a token has come."""
        found = resolved(items("D-END-04-b.sse"))
        assert outcome(found) == (Outcome.ERROR, "overloaded")
        assert found.ttft_us == 10 * MS

    @pytest.mark.parametrize("name", ["D-END-05-a.sse", "D-END-05-b.sse"])
    def test_nothing_but_a_terminator(self, name: str) -> None:
        """D-END-05: a stream without a token is no success, and has no times of tokens."""
        found = resolved(items(name))
        assert outcome(found) == (Outcome.ERROR, "empty_stream")
        times = (found.ttft_us, found.tpot_us, found.duration_us(Phase.DECODE))
        assert times == (None, None, None)
        assert (found.tokens, found.incomplete, found.e2e_us is None) == (Tokens(), True, False)


class TestUsage:
    """Kind USE: usage, token counts, choices and tool calls."""

    def test_counts_of_legacy_completions(self) -> None:
        """D-USE-01: counts come from the usage; the first chunk is the first token."""
        found = resolved(items("D-USE-01.sse"))
        assert found.tokens == Tokens(input=2, output=3)
        assert (found.finish_reasons, found.ttft_us) == (("length",), 10 * MS)

    def test_text_of_legacy_completions(self) -> None:
        """D-USE-01: the text holds the prompt, and an attribute says so."""
        reply = reply_of(items("D-USE-01.sse"), echo=True)
        assert text_of(reply) == ("Rain is wet and cold", "")
        assert annotated(reply)[semconv.OUTPUT_ECHOES] is True

    def test_chunks_are_no_tokens(self) -> None:
        """D-USE-02: six tokens in two chunks take 20 ms each."""
        found = replayed("D-USE-02.timeline.json")
        assert (found.tokens.output, found.tpot_us) == (6, 20 * MS)

    def test_parts_of_tokens_are_not_added(self) -> None:
        """D-USE-03: cached tokens are part of the input, and reasoning is part of the output."""
        found = resolved(items("D-USE-03.json"), streaming=False)
        assert found.tokens == Tokens(input=1000, output=300, cached=960, reasoning=280)

    def test_no_usage(self) -> None:
        """D-USE-04: counts that nobody stated are absent, and so is what is made of them."""
        found = resolved(items("D-USE-04.sse"))
        assert (found.tokens, found.tpot_us, found.outcome) == (Tokens(), None, Outcome.OK)

    def test_running_usage(self) -> None:
        """D-USE-05: the last of many usages counts, and none is added to another."""
        assert resolved(items("D-USE-05.sse")).tokens == Tokens(input=7, output=3)

    @pytest.mark.parametrize(
        ("name", "calls"),
        [
            ("D-USE-06-a.sse", [("lookup", '{"q":1}'), ("fetch", '{"q":2}')]),
            ("D-USE-06-b.sse", [("lookup", '{"q":1}')]),
            ("D-USE-06-c.sse", [("lookup", '{"q":1}')]),
        ],
    )
    def test_calls_of_odd_indices(self, name: str, calls: list[tuple[str, str]]) -> None:
        """D-USE-06: a name begins a call, and pieces without one go on with it."""
        reply = reply_of(items(name))
        assert calls == [(each.name, each.arguments) for each in reply.tool_calls]


class TestOllama:
    """Kind OLL: Ollama's replies."""

    @pytest.mark.parametrize("name", ["D-OLL-01-a.ndjson", "D-OLL-01-b.ndjson"])
    def test_a_call_on_any_line(self, name: str) -> None:
        """D-OLL-01: a call is seen on the last line, too, and is the first token."""
        reply, found = reply_of(items(name)), resolved(items(name))
        (call,) = reply.tool_calls
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo"})
        assert (found.finish_reasons, found.ttft_us) == (("stop",), 10 * MS)
        assert found.tokens == Tokens(input=50, output=14)

    def test_a_full_queue(self) -> None:
        """D-OLL-02: the status alone says that the request was refused, and why."""
        exchange = case("D-OLL-02.http.json")
        found = played([], exchange["elapsed_ms"], status=exchange["status"])
        assert outcome(found) == (Outcome.REJECTED, "503")
        assert (found.ttft_us, found.tokens) == (None, Tokens())
        assert found.duration_us(Phase.QUEUE) is None

    def test_thinking_is_the_first_token(self) -> None:
        """D-OLL-03: lines with a thought and no text are tokens; the count is the server's."""
        found = replayed("D-OLL-03.timeline.json")
        assert (found.ttft_us, found.tokens.output) == (250 * MS, 9)

    def test_thinking_stays_apart(self) -> None:
        """D-OLL-03: the thoughts are kept whole and beside the answer."""
        reads = case("D-OLL-03.timeline.json")["reads"]
        reply = reply_of(json.loads(each["text"]) for each in reads)
        assert text_of(reply) == ("42", "Let me see")

    def test_stamps_of_any_precision(self) -> None:
        """D-OLL-04: 0 to 9 digits and offsets are read to the nanosecond; no stamp is no error."""
        expected = [
            1777882537000000000,
            1777882537500000000,
            1777882537370000000,
            1777882537123456789,
            None,
        ]
        assert expected == [epoch_ns(each["created_at"]) for each in items("D-OLL-04.ndjson")]

    def test_stamps_move_nothing(self) -> None:
        """D-OLL-04: times are those of our clock, whatever the server's says."""
        assert resolved(items("D-OLL-04.ndjson")).ttft_us == 10 * MS


class TestFirstToken:
    """D-TIM-03: the opening chunk with a role is not the first token."""

    def test_is_the_first_text(self) -> None:
        """The role chunk says nothing of the time to first token."""
        found = replayed("D-TIM-03.timeline.json")
        assert (found.ttft_us, found.tpot_us) == (480 * MS, 40 * MS)

    @pytest.mark.parametrize("content", ["", None, ...])
    def test_whatever_the_role_chunk_holds(self, content: Any) -> None:
        """Empty, null or missing content is the same."""
        delta = {"role": "assistant"} | ({} if content is ... else {"content": content})
        role = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
        text = {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}
        assert played([(30, role), (480, text)], 500).ttft_us == 480 * MS


class TestTgiHeaders:
    """D-TIM-05: what a reply says in its headers, and what in its body."""

    def _reply(self, name: str) -> Reply:
        (found,) = [e for e in case("D-TIM-05.json")["exchanges"] if e["name"] == name]
        reply = reply_of([found["body"]])
        read_headers(reply, found["headers"])
        return reply

    def test_phases(self) -> None:
        """The queue of a plain reply is known to be 0; prefill and decode are not taken apart."""
        reply = self._reply("a")
        assert reply.reported == {Phase.QUEUE: 0}
        assert reply.attributes == {semconv.REPORTED_INFERENCE_US: 202_000}
        assert reply.usage == {"input": 9, "output": 3}

    def test_counts_without_details(self) -> None:
        """A list-shaped reply without details has its text, and counts from the headers."""
        reply = self._reply("b")
        assert text_of(reply) == (" we see rain", "")
        assert (reply.usage, reply.end_record) == ({"input": 9, "output": 3}, True)

    def test_a_streamed_reply(self) -> None:
        """Headers that were sent before anything was known say who answers, and no times."""
        reply = self._reply("c")
        assert (reply.server_engine, reply.reported, reply.usage) == ("tgi", {}, {})
