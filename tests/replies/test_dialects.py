"""The other wire formats: responses, messages, and the engines' own."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from otel_llm import semconv
from otel_llm.replies import (
    CHAT,
    LLAMA_CPP,
    MESSAGES,
    OLLAMA,
    RESPONSES,
    SGLANG,
    TGI,
    Dialect,
    Failure,
    dialect_of,
    epoch_ns,
)
from otel_llm.timeline import Outcome, Phase, Source, Tokens
from tests.replies.builders import items, played, read, recorded, reply_of, resolved, text_of, token

SGLANG_CHUNK = {"text": "Hi", "output_ids": [5], "meta_info": {"id": "r"}}
LLAMA_CHUNK = {"index": 0, "content": "Hi", "tokens": [], "stop": False}


@pytest.mark.parametrize(
    ("item", "dialect"),
    [
        ({"object": "chat.completion.chunk", "choices": []}, CHAT),
        ({"choices": [{"text": "a"}]}, CHAT),
        ({"object": "list", "data": []}, CHAT),
        ({"error": {"message": "no"}}, CHAT),
        ({"type": "response.created", "response": {}}, RESPONSES),
        ({"object": "response", "status": "completed"}, RESPONSES),
        ({"type": "error", "code": "server_error", "message": "no"}, RESPONSES),
        ({"type": "message_start", "message": {}}, MESSAGES),
        ({"type": "error", "error": {"type": "overloaded_error"}}, MESSAGES),
        ({"model": "m", "response": "a", "done": False}, OLLAMA),
        ({"model": "m", "embeddings": [[0.5]]}, OLLAMA),
        ({"index": 1, "token": {"id": 5, "text": "a"}, "generated_text": None}, TGI),
        ([{"generated_text": "a"}], TGI),
        (SGLANG_CHUNK, SGLANG),
        ([SGLANG_CHUNK], SGLANG),
        (LLAMA_CHUNK, LLAMA_CPP),
    ],
)
def test_formats_are_told_apart(item: object, dialect: Dialect) -> None:
    """Exactly one dialect fits; an error that says nothing else gets any."""
    assert dialect is dialect_of(item)


@pytest.mark.parametrize("item", [None, 1, "text", [], {}, [1], {"detail": "Not Found"}])
def test_other_items_are_none(item: object) -> None:
    """What is no reply has no dialect."""
    assert dialect_of(item) is None


def event(kind: str, **fields: Any) -> dict[str, Any]:
    """An event with a type."""
    return {"type": kind, **fields}


class TestResponses:
    """OpenAI's responses."""

    @pytest.mark.parametrize(
        "item",
        [
            event("response.output_text.delta", delta="a"),
            event("response.reasoning_summary_text.delta", delta="a"),
            event("response.refusal.delta", delta="a"),
            event("response.function_call_arguments.delta", delta="{"),
            event("response.output_item.added", item={"type": "function_call", "name": "look"}),
        ],
    )
    def test_tokens(self, item: object) -> None:
        """A delta in any channel is a token, and so is the name of a call."""
        assert token(item)

    @pytest.mark.parametrize(
        "item",
        [
            event("response.created", response={"status": "in_progress"}),
            event("response.output_text.delta", delta=""),
            event("response.output_item.added", item={"type": "message", "content": []}),
            event("response.output_text.done", text="all of it"),
            event("response.completed", response={}),
        ],
    )
    def test_no_tokens(self, item: object) -> None:
        """What opens or closes an answer is none."""
        assert not token(item)

    def test_a_recorded_stream(self) -> None:
        """Five tokens of vLLM, cut at the limit, are a whole reply with its usage."""
        found = recorded("responses_stream.body")
        timeline, reply = resolved(found), reply_of(found)
        assert timeline.outcome is Outcome.OK
        assert reply.usage["output"] == 5
        assert reply.response_id == "resp_a430c0b360009bc5"
        assert text_of(reply)[0] == "".join(
            item["delta"] for item in found if item["type"] == "response.output_text.delta"
        )

    def test_an_incomplete_response(self) -> None:
        """The reason why it was cut is its finish reason, and it ended."""
        response = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        reply = read(event("response.incomplete", response=response))
        assert (reply.finish_reasons, reply.end_record) == ({0: "max_output_tokens"}, True)

    def test_a_failed_response(self) -> None:
        """Its error has a code."""
        response = {"status": "failed", "error": {"code": "server_error", "message": "no"}}
        reply = read(event("response.failed", response=response))
        assert (reply.error, reply.end_record) == (Failure("server_error"), False)

    def test_a_cancelled_response(self) -> None:
        """Without an error its status is the type."""
        assert read({"object": "response", "status": "cancelled"}).error == Failure("cancelled")

    def test_an_error_event(self) -> None:
        """It has a code beside its type."""
        item = event("error", code="rate_limit_exceeded", message="slow down")
        assert Failure("rate_limit_exceeded", refused=True) == read(item).error

    def test_a_whole_response(self) -> None:
        """Text, reasoning and calls are pieces of one answer."""
        output = [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "Wait"}]},
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        ]
        usage = {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 2},
        }
        item = {"object": "response", "status": "completed", "output": output, "usage": usage}
        reply = read(item)
        assert (text_of(reply), reply.tool_calls) == (("Wait", "hm"), [("look", "{}", "c")])
        assert reply.usage == {"input": 9, "output": 7, "cached": 4, "reasoning": 2}

    def test_the_last_event_repeats_the_answer(self) -> None:
        """What came in pieces and then whole is kept once."""
        output = [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]
        done = {"status": "completed", "output": output}
        reply = reply_of(
            [
                event("response.output_text.delta", delta="H"),
                event("response.output_text.delta", delta="i"),
                event("response.completed", response=done),
            ]
        )
        assert text_of(reply) == ("Hi", "")

    def test_a_call_in_pieces(self) -> None:
        """Arguments belong to the call at the same place of the output."""
        added = {"type": "function_call", "name": "look", "call_id": "c"}
        kind = "response.function_call_arguments.delta"
        reply = reply_of(
            [
                event("response.output_item.added", output_index=1, item=added),
                event(kind, output_index=1, delta='{"q"'),
                event(kind, output_index=1, delta=":1}"),
            ]
        )
        assert reply.tool_calls == [("look", '{"q":1}', "c")]


class TestMessages:
    """Anthropic's messages."""

    STREAM = (
        event(
            "message_start",
            message={
                "id": "msg_1",
                "model": "m",
                "usage": {"input_tokens": 3, "cache_read_input_tokens": 5, "output_tokens": 1},
            },
        ),
        event("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""}),
        event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"}),
        event("content_block_start", index=1, content_block={"type": "text", "text": ""}),
        event("content_block_delta", index=1, delta={"type": "text_delta", "text": "Hi"}),
        event(
            "content_block_start",
            index=2,
            content_block={"type": "tool_use", "id": "t", "name": "look", "input": {}},
        ),
        event("content_block_delta", index=2, delta={"partial_json": '{"q":1}'}),
        event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 9}),
        event("message_stop"),
    )

    def test_tokens(self) -> None:
        """Thoughts, text, and calls are tokens; what opens and closes a block is none."""
        assert [at for at, item in enumerate(self.STREAM) if token(item)] == [2, 4, 5, 6]

    def test_a_stream(self) -> None:
        """The input is with what came from the cache; the last output count is the true one."""
        found = resolved(self.STREAM)
        assert found.tokens == Tokens(input=8, output=9, cached=5)
        assert (found.outcome, found.finish_reasons) == (Outcome.OK, ("tool_use",))

    def test_its_answer(self) -> None:
        """Blocks are put together by their index."""
        reply = reply_of(self.STREAM)
        assert (reply.response_id, text_of(reply)) == ("msg_1", ("Hi", "hm"))
        assert reply.tool_calls == [("look", '{"q":1}', "t")]

    def test_a_stream_without_a_reason(self) -> None:
        """The last event ends it all the same."""
        assert read(event("message_stop")).end_record

    def test_a_whole_message(self) -> None:
        """It has the same facts in one piece."""
        content = [{"type": "text", "text": "Hi"}, {"type": "tool_use", "name": "a", "input": {}}]
        usage = {"input_tokens": 3, "cache_creation_input_tokens": 2, "output_tokens": 4}
        reply = read(event("message", content=content, stop_reason="end_turn", usage=usage))
        assert (text_of(reply)[0], reply.tool_calls) == ("Hi", [("a", "{}", None)])
        assert reply.usage == {"input": 5, "output": 4, "cache_written": 2}
        assert (reply.end_record, reply.finish_reasons) == (True, {0: "end_turn"})

    def test_an_error_event(self) -> None:
        """The type of the error counts, and not that of the event."""
        item = event("error", error={"type": "overloaded_error", "message": "no"})
        assert Failure("overloaded_error", refused=True) == read(item).error


class TestOllama:
    """Ollama's own routes."""

    LAST: ClassVar[dict[str, Any]] = {
        "model": "m",
        "response": "",
        "done": True,
        "done_reason": "stop",
        "total_duration": 1_000,
        "load_duration": 100,
        "prompt_eval_count": 4,
        "prompt_eval_duration": 200,
        "eval_count": 3,
        "eval_duration": 300,
    }

    def test_durations(self) -> None:
        """They are nanoseconds, and the total is told apart from the phases."""
        reply = read(self.LAST)
        expected = {Phase.LOAD: 100, Phase.PREFILL: 200, Phase.DECODE: 300}
        assert (reply.reported, reply.reported_total_ns) == (expected, 1_000)

    def test_the_queue_is_what_is_left(self) -> None:
        """What the phases leave of the total is an estimate of the queue."""
        scaled = {k: v * 50_000 if "duration" in k else v for k, v in self.LAST.items()}
        piece = {"response": "a", "done": False}
        found = played([(40, piece), (55, piece), (55, scaled)], 56)
        (queue,) = [each for each in found.phases if each.phase is Phase.QUEUE]
        assert (queue.duration_us, queue.source) == (20_000, Source.ESTIMATED)

    def test_a_line_that_is_not_the_last(self) -> None:
        """It ends nothing."""
        reply = read({"model": "m", "response": "a", "done": False})
        assert (reply.end_record, reply.server_engine) == (False, "ollama")

    def test_a_model_that_is_only_loaded(self) -> None:
        """A reply without tokens is complete, and why it ended is said."""
        found = resolved([{"model": "m", "response": "", "done": True, "done_reason": "load"}])
        assert (found.outcome, found.finish_reasons) == (Outcome.OK, ("load",))

    def test_embeddings(self) -> None:
        """They have an input count and no decode."""
        item = {"model": "m", "embeddings": [[0.5]], "total_duration": 9, "prompt_eval_count": 4}
        reply = read(item)
        assert (reply.usage, reply.end_record, token(item)) == ({"input": 4}, True, False)

    def test_several_calls(self) -> None:
        """Calls have no index; each is another, be its name the same."""
        calls = [{"function": {"name": "w", "arguments": {"q": q}}} for q in (1, 2)]
        reply = read({"message": {"tool_calls": calls}, "done": False})
        assert [each.name for each in reply.tool_calls] == ["w", "w"]

    @pytest.mark.parametrize(
        ("stamp", "expected"),
        [
            ("1970-01-01T00:00:01Z", 1_000_000_000),
            ("1970-01-01T00:00:00.0000000019Z", 1),
            ("1970-01-01T01:00:00-01:30", 9_000_000_000_000),
            ("1969-12-31T23:59:59.5Z", -500_000_000),
            ("2026-02-30T00:00:00Z", None),
            ("2026-02-03T00:00:00", None),
            ("2026-02-03T00:00:00.Z", None),
            ("²026-02-03T00:00:00Z", None),
            (1_764_460_800, None),
        ],
    )
    def test_stamps(self, stamp: object, expected: int | None) -> None:
        """Any RFC 3339 time is read to the nanosecond; nothing else is a time."""
        assert expected == epoch_ns(stamp)


class TestTgi:
    """TGI's own routes."""

    def test_a_stream(self) -> None:
        """Special tokens are generated and no text; the last event ends the stream."""
        found = items("D-FRM-04.sse")
        reply, timeline = reply_of(found), resolved(found)
        assert [token(item) for item in found] == [True] * 3
        assert (text_of(reply)[0], reply.usage["output"]) == ("Blue sky", 3)
        assert (timeline.outcome, timeline.finish_reasons) == (Outcome.OK, ("eos_token",))

    def test_an_answer_with_details(self) -> None:
        """Finish reason and counts stand in the details."""
        prefill = [{"id": 1, "text": "a"}] * 4
        details = {"finish_reason": "length", "generated_tokens": 3, "prefill": prefill}
        reply = read({"generated_text": "a b c", "details": details})
        assert (reply.finish_reasons, reply.usage) == ({0: "length"}, {"input": 4, "output": 3})
        assert (reply.end_record, reply.server_engine) == (True, "tgi")

    def test_an_unset_text_ends_nothing(self) -> None:
        """`generated_text` is null until the last event."""
        assert not read({"token": {"id": 1, "text": "a"}, "generated_text": None}).end_record


class TestLlamaCpp:
    """The llama.cpp server's own route."""

    LAST: ClassVar[dict[str, Any]] = {
        "index": 0,
        "content": "",
        "stop": True,
        "stop_type": "limit",
        "model": "m.gguf",
        "tokens_predicted": 8,
        "tokens_evaluated": 12,
        "tokens_cached": 19,
        "timings": {"cache_n": 5, "prompt_n": 7, "prompt_ms": 2.5, "predicted_ms": 10.0},
    }

    def test_the_last_chunk(self) -> None:
        """It has counts and phases; cached are the prompt's tokens, not all that are held."""
        reply = read(self.LAST)
        assert reply.usage == {"input": 12, "output": 8, "cached": 5}
        assert reply.reported == {Phase.PREFILL: 2_500_000, Phase.DECODE: 10_000_000}
        assert (reply.finish_reasons, reply.end_record) == ({0: "limit"}, True)

    def test_tokens(self) -> None:
        """Text is a token, and so is one whose text is held back; the last chunk has none."""
        held = {**LLAMA_CHUNK, "content": "", "tokens": [9]}
        assert [token(item) for item in (LLAMA_CHUNK, held, self.LAST)] == [True, True, False]

    def test_an_older_server(self) -> None:
        """It says with flags why it stopped."""
        reply = read({"content": "", "stop": True, "stopped_word": True, "stopped_eos": False})
        assert reply.finish_reasons == {0: "word"}


class TestSglang:
    """SGLang's own route."""

    META: ClassVar[dict[str, Any]] = {
        "id": "r-1",
        "prompt_tokens": 6,
        "completion_tokens": 4,
        "cached_tokens": 2,
        "num_retractions": 1,
        "dp_rank": 3,
        "finish_reason": {"type": "length", "length": 4},
        "queue_time": 0.25,
        "request_received_ts": 1764460800.0,
        "api_server_dispatch_finish_ts": 1764460800.5,
        "forward_entry_time": 1764460801.0,
        "prefill_finished_time": 1764460802.0,
        "request_finished_ts": 1764460804.0,
        "spec_draft_token_num": 9,
        "spec_accept_token_num": 5,
    }

    def test_meta_info(self) -> None:
        """Durations are seconds, and phases lie between the server's stamps."""
        reply = read({"text": "a", "meta_info": self.META})
        expected = {Phase.QUEUE: 0.25, Phase.PREPROCESS: 0.5, Phase.PREFILL: 1, Phase.DECODE: 2}
        assert {phase: seconds * 10**9 for phase, seconds in expected.items()} == reply.reported
        assert reply.usage == {"input": 6, "output": 4, "cached": 2}
        assert (reply.preemptions, reply.replica, reply.finish_reasons) == (1, 3, {0: "length"})
        assert reply.attributes == {semconv.DRAFT_TOKENS: 9, semconv.ACCEPTED_TOKENS: 5}

    def test_stamps_of_what_never_was(self) -> None:
        """A stamp of zero, or one before the other, gives no phase."""
        times = {"forward_entry_time": 0.0, "prefill_finished_time": 5.0, "request_finished_ts": 4}
        assert read({"meta_info": times}).reported == {}

    def test_text_that_is_repeated(self) -> None:
        """Each chunk holds the answer so far, and it is kept once."""
        texts = ("The", "The quick", "The quick fox")
        found = [{"text": text, "meta_info": {"finish_reason": None}} for text in texts]
        assert text_of(reply_of(found))[0] == "The quick fox"

    def test_text_in_pieces(self) -> None:
        """A server that sends pieces is read as well."""
        found = [{"text": text, "meta_info": {}} for text in ("The", " quick")]
        assert text_of(reply_of(found))[0] == "The quick"

    def test_an_abort(self) -> None:
        """It is a failure dressed as an answer."""
        meta = {"finish_reason": {"type": "abort", "message": "no"}}
        assert resolved([{"text": "a", "meta_info": meta}]).error_type == "abort"
