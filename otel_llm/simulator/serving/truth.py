"""What really happened to a request in a server: never on the wire, never in telemetry."""

from __future__ import annotations

from dataclasses import dataclass, field

from otel_llm.simulator.truth import RequestTruth


@dataclass(slots=True)
class ServingTruth:
    """One request to a simulated server. Instants are nanoseconds of the driver's clock.

    `trace_id` and `parent_id` are what the request's `traceparent` named, in hexadecimal digits:
    the server's own request span where its middleware has opened one, else the client's. With
    several sequences `engine` holds the truth of each.
    """

    dialect: str
    route: str
    received_ns: int
    trace_id: str | None = None
    parent_id: str | None = None
    streaming: bool = False
    engine: list[RequestTruth] = field(default_factory=list)
    load_ns: int = 0
    """How long the request waited for its model to be loaded."""
    first_delivered_ns: int | None = None
    """When the first piece of the body was taken that was sent after the first token."""
    last_delivered_ns: int | None = None
    """When the latest piece of the body was taken."""
    finished_ns: int | None = None
    """When the last piece of the body was taken, or the client was found to have left."""
    status: int | None = None
    outcome: str | None = None
    """`ok`, `error`, `rejected` or `cancelled` (the client left); None while it lives."""
    error: str | None = None
    """What went wrong, as one word."""

    def mark(self, name: str) -> int | None:
        """An instant of the engine over all sequences.

        *name* is a field of `RequestTruth`: of `last_token_ns` and `finished_ns` the latest, of
        others the earliest is meant. None if it never came.
        """
        given = (getattr(each, name) for each in self.engine)
        known = [at_ns for at_ns in given if at_ns is not None]
        pick = max if name in _LATEST else min
        return pick(known) if known else None


_LATEST = {"last_token_ns", "finished_ns"}
