"""The facts of a reply: what is kept, what is written, and how much of it."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.replies import Reply
from otel_llm.replies.capture import MOST_CHARACTERS, MOST_CHOICES, Captured
from otel_llm.testing import ManualClock
from otel_llm.timeline import Outcome, Phase, RequestRecorder, Timeline, Tokens, resolve
from tests.replies.builders import annotated, client


def written(reply: Reply, recorder: RequestRecorder | None = None) -> Timeline:
    """The timeline of a streamed request with this reply and nothing else."""
    recorder = recorder or client(ManualClock())
    reply.into(recorder, lambda _: None)
    return resolve(recorder.evidence())


class TestWriting:
    """Into a recorder and onto a span."""

    def test_attributes(self) -> None:
        """Names, engine and further facts stand under their attributes."""
        reply = Reply()
        reply.named("c-1", "m", "fp_ollama")
        reply.server_engine, reply.gateway = "ollama", "litellm"
        reply.replica, reply.preemptions, reply.malformed = 0, 2, 1
        reply.noted(semconv.DRAFT_TOKENS, 4)
        expected = {
            semconv.RESPONSE_ID: "c-1",
            semconv.RESPONSE_MODEL: "m",
            semconv.SYSTEM_FINGERPRINT: "fp_ollama",
            semconv.ENGINE_NAME: "ollama",
            semconv.GATEWAY: "litellm",
            semconv.REPLICA: 0,
            semconv.PREEMPTIONS: 2,
            semconv.MALFORMED_RECORDS: 1,
            semconv.DRAFT_TOKENS: 4,
        }
        assert expected == annotated(reply)

    def test_nothing_is_known(self) -> None:
        """An empty reply writes nothing at all."""
        assert annotated(Reply()) == {}
        assert written(Reply()).tokens == Tokens()

    def test_evidence(self) -> None:
        """Counts, durations, the total and the end go to the recorder."""
        reply, recorder = Reply(), client(ManualClock())
        reply.counted(input=3, output=2, cached=1, cache_written=0, reasoning=1)
        reply.took(Phase.PREFILL, 5)
        reply.reported_total_ns = 9
        reply.finished(0, "stop")
        reply.into(recorder, lambda _: None)
        evidence = recorder.evidence()
        assert evidence.tokens == Tokens(3, 2, 1, 0, 1)
        assert (evidence.reported, evidence.reported_total_ns) == ({Phase.PREFILL: 5}, 9)
        assert (evidence.ending.end_record, evidence.finish_reasons) == (True, ("stop",))

    def test_an_end_that_others_saw_stays(self) -> None:
        """A reply that knows of no end does not take one back."""
        recorder = client(ManualClock())
        recorder.ending(end_record=True, terminator=True)
        assert written(Reply(), recorder).outcome is Outcome.OK

    @pytest.mark.parametrize(("ended", "outcome"), [(2, Outcome.ERROR), (3, Outcome.OK)])
    def test_several_choices(self, ended: int, outcome: Outcome) -> None:
        """A reply of several choices is complete when each of them has ended."""
        recorder, reply = client(ManualClock()), Reply()
        recorder.expected_sequences = 3
        for choice in range(ended):
            reply.finished(choice, "stop")
        assert written(reply, recorder).outcome is outcome

    def test_a_failure_leaks_nothing_into_its_type(self) -> None:
        """Long names are cut, so that none fills a span."""
        reply = Reply()
        reply.named("i" * 999, "m" * 999)
        reply.finished(0, "r" * 999)
        lengths = (len(reply.response_id or ""), len(reply.model or ""))
        assert (lengths, len(reply.finish_reasons[0])) == ((256, 256), 64)

    def test_choices_are_bounded(self) -> None:
        """An absurd index is left out."""
        reply = Reply()
        reply.finished(MOST_CHOICES, "stop")
        assert reply.finish_reasons == {}


class TestCapture:
    """The text of an answer."""

    def calls(self, *pieces: tuple[Any, Any, Any, Any]) -> list[tuple[str, str]]:
        """Names and arguments of what the pieces (index, id, name, arguments) make."""
        kept = Captured()
        for piece in pieces:
            kept.call(0, *piece)
        return [(each.name, each.arguments) for each in kept.tool_calls()]

    def test_a_call_without_an_index(self) -> None:
        """Pieces without an index go on with the call that was begun without one."""
        assert self.calls((None, "x", "a", "1"), (None, None, None, "2")) == [("a", "12")]

    def test_a_name_that_is_repeated(self) -> None:
        """A name that comes with every piece of the same id is one call."""
        assert self.calls((0, "x", "a", "1"), (0, "x", "a", "2")) == [("a", "12")]

    def test_a_name_that_is_repeated_without_an_id(self) -> None:
        """So it is without ids."""
        assert self.calls((0, None, "a", "1"), (0, None, "a", "2")) == [("a", "12")]

    def test_another_name_without_an_id(self) -> None:
        """Another name is another call."""
        assert self.calls((0, None, "a", "1"), (0, None, "b", "2")) == [("a", "1"), ("b", "2")]

    def test_calls_side_by_side(self) -> None:
        """Pieces find their call by its index."""
        pieces = ((0, "x", "a", ""), (1, "y", "b", ""), (0, None, None, "1"), (1, None, None, "2"))
        assert self.calls(*pieces) == [("a", "1"), ("b", "2")]

    def test_arguments_at_an_unknown_index(self) -> None:
        """They go on with the latest call."""
        assert self.calls((1, "x", "a", ""), (0, None, "", "1")) == [("a", "1")]

    def test_arguments_without_a_call(self) -> None:
        """A name that never came leaves a call without one."""
        assert self.calls((0, None, None, "1")) == [("", "1")]

    def test_empty_pieces(self) -> None:
        """A piece with nothing in it begins no call."""
        assert self.calls((0, "x", "", ""), (0, None, None, None), (0, "x", 7, [])) == []

    def test_arguments_that_are_no_object(self) -> None:
        """A call that was cut keeps its arguments as text."""
        kept = Captured()
        kept.call(0, 0, "x", "a", '{"q":')
        ((message,), arguments) = kept.messages({}), '{"q":'
        part = {"type": "tool_call", "name": "a", "id": "x", "arguments": arguments}
        assert message == {"role": "assistant", "parts": [part], "finish_reason": None}

    def test_there_is_an_end_to_it(self) -> None:
        """Text beyond the limit is left out, which is said, and counts for all channels."""
        reply = Reply(capture=True)
        assert reply.captured is not None
        reply.captured.text(0, "a" * (MOST_CHARACTERS - 1))
        reply.captured.reasoning(0, "bb")
        reply.captured.call(0, 0, None, "look", "{}")
        text, thoughts = reply.captured.answer(0)
        assert (len(text), thoughts, reply.tool_calls) == (MOST_CHARACTERS - 1, "b", [])
        assert annotated(reply)[semconv.OUTPUT_CUT] is True

    def test_what_fits_is_not_cut(self) -> None:
        """Text up to the limit is whole."""
        kept = Captured()
        kept.text(0, "a" * MOST_CHARACTERS)
        assert not kept.cut

    def test_choices_are_bounded(self) -> None:
        """Absurdly many choices share a place."""
        kept = Captured()
        for choice in range(MOST_CHOICES + 50):
            kept.text(choice, "a")
        assert len(kept.messages({})) == MOST_CHOICES + 1
