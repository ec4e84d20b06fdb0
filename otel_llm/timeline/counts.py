"""Counts of the evidence that can be believed: tokens, preemptions."""

from __future__ import annotations

from otel_llm.timeline.evidence import Evidence, Sequence, Tokens
from otel_llm.timeline.marks import Side

MOST_TOKENS = 2**53


def token_counts(evidence: Evidence) -> Tokens:
    """The request's counts; output tokens nobody stated are the sum of its sequences'."""
    asked, output, cached, written, reasoning = map(count, evidence.tokens)
    if output is None and evidence.sequences:
        known = [n for s in evidence.sequences if (n := count(s.output_tokens)) is not None]
        if known and len(known) >= evidence.expected_sequences:
            output = sum(known)
    return Tokens(asked, output, cached, written, reasoning)


def count(value: object) -> int | None:
    """A whole number that is not negative and not absurd, or None."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def tokens_per_output(evidence: Evidence, tokens: Tokens) -> float | None:
    """How many tokens the outputs hold between which a server's gaps lie."""
    gaps = evidence.gaps
    if gaps is None or gaps.p50_us is None or tokens.output is None:
        return None
    return None if evidence.side is Side.CLIENT else tokens.output / gaps.outputs


def preemptions(sequences: tuple[Sequence, ...]) -> int | None:
    """How often the sequences were preempted together, or None if nobody said."""
    known = [n for each in sequences if (n := count(each.preemptions)) is not None]
    return sum(known) if known else None
