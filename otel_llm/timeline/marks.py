"""The words of a request's time: marks, phases, sources, sides and outcomes."""

from __future__ import annotations

from enum import Enum, StrEnum


class Mark(Enum):
    """An instant in the life of a request. Values give the order in which they may come.

    RECEIVED is the arrival of the request (on a client: the call). SENT is when a client sent the
    attempt that was answered, if that is not the call itself. FIRST_DELIVERED is outside this
    order: it follows FIRST_TOKEN and may lie on either side of LAST_TOKEN.
    """

    RECEIVED = 0
    SENT = 1
    QUEUED = 2
    SCHEDULED = 3
    FIRST_TOKEN = 4
    LAST_TOKEN = 5
    FINISHED = 6
    FIRST_DELIVERED = 7

    # Members are single objects; the default hashes a name in Python on every look-up.
    __hash__ = object.__hash__


class Phase(StrEnum):
    """A stretch of a request; phases follow each other in this order and never overlap."""

    RETRY = "retry"
    PREPROCESS = "preprocess"
    LOAD = "load"
    QUEUE = "queue"
    PREFILL = "prefill"
    FIRST_TOKEN = "first_token"  # noqa: S105
    DECODE = "decode"
    DELIVERY = "delivery"


class Part(StrEnum):
    """Something measured inside a phase; parts do not tile."""

    PREFILL_PREEMPTED_US = "prefill.preempted_us"
    DECODE_PREEMPTED_US = "decode.preempted_us"
    QUEUE_KV_TRANSFER_US = "queue.kv_transfer_us"
    QUEUE_GRAMMAR_US = "queue.grammar_us"
    PREFILL_CHUNKS = "prefill.chunks"


class Source(StrEnum):
    """How a time is known: read by us, said by the engine, computed from both, or a bound."""

    OBSERVED = "observed"
    REPORTED = "reported"
    DERIVED = "derived"
    ESTIMATED = "estimated"


class Side(StrEnum):
    """From where a request is seen."""

    CLIENT = "client"
    PROXY = "proxy"
    SERVER = "server"
    ENGINE = "engine"


class Outcome(StrEnum):
    """How a request ended; only `OK` is a success."""

    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"
    REJECTED = "rejected"


def combined(first: Source, second: Source) -> Source:
    """How the time between two marks is known: the two agree, or it is derived or estimated."""
    if first is second:
        return first
    if Source.ESTIMATED in (first, second):
        return Source.ESTIMATED
    return Source.DERIVED
