"""Histograms of every request, sampled or not, with the conventions' buckets."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, MeterProvider, NoOpMeter

from otel_llm import semconv
from otel_llm._version import __version__
from otel_llm.emit.request import RequestInfo
from otel_llm.semconv import Vocabulary
from otel_llm.timeline import Outcome, Phase, Side, Timeline

OTHER = "_OTHER"
MOST_WORDS = 200
"""Most error types, operations and providers together; applications may invent them."""
MOST_MODELS = 200
"""More models than this in one process are recorded as `_OTHER`: names come from clients."""


class Instruments:
    """The histograms of one meter provider, and how a timeline is recorded into them."""

    def __init__(self, provider: MeterProvider, vocabulary: Vocabulary) -> None:
        meter = provider.get_meter(semconv.SCOPE, __version__, vocabulary.schema_url)
        self.enabled = not isinstance(meter, NoOpMeter)
        self._models: set[str] = set()
        self._words: set[str] = set()
        self._phase_rows: dict[tuple[str, Side, str | None], dict[Phase, dict[str, str]]] = {}

        def seconds(name: str, buckets: tuple[float, ...], description: str) -> Histogram:
            return meter.create_histogram(
                name,
                semconv.SECONDS,
                description,
                explicit_bucket_boundaries_advisory=buckets,
            )

        def tokens(name: str | None) -> Histogram | None:
            return name and meter.create_histogram(  # type: ignore[return-value]
                name,
                semconv.TOKENS,
                "Tokens of a request.",
                explicit_bucket_boundaries_advisory=semconv.TOKEN_BUCKETS,
            )

        self._server_duration = seconds(
            semconv.SERVER_DURATION, semconv.DURATION_BUCKETS, "Arrival to last byte."
        )
        self._server_ttft = seconds(
            semconv.SERVER_TTFT, semconv.TTFT_BUCKETS, "Arrival to first token."
        )
        self._server_tpot = seconds(
            semconv.SERVER_TPOT, semconv.TPOT_BUCKETS, "Time per output token after the first."
        )
        self._client_duration = seconds(
            vocabulary.client_duration, semconv.DURATION_BUCKETS, "Call to end of reply."
        )
        self._phase = seconds(
            semconv.PHASE_DURATION, semconv.PHASE_BUCKETS, "How long one phase took."
        )
        self._token_usage = tokens(vocabulary.token_usage)
        self._input_tokens = tokens(vocabulary.input_token_usage)
        self._output_tokens = tokens(vocabulary.output_token_usage)

    def know(self, models: Iterable[str]) -> None:
        """Names of models that exist, so that they are told apart before they ever answered."""
        self._models.update(models)

    def record(self, info: RequestInfo, timeline: Timeline, context: Context) -> None:
        """Record one finished request; *context* carries its span, for the exemplars."""
        attributes: dict[str, str | int] = {
            semconv.OPERATION: self._bounded(info.operation),
            semconv.PROVIDER: self._bounded(info.provider),
        }
        model = self._bounded_model(info.model, timeline.outcome)
        if model is not None:
            attributes[semconv.REQUEST_MODEL] = model
        if timeline.side is Side.CLIENT:
            self._record_client(timeline, attributes, info, context)
        else:
            self._record_server(timeline, attributes, context)
        self._record_phases(timeline, model, self._bounded(info.operation), context)

    def _bounded_model(self, model: str | None, outcome: Outcome) -> str | None:
        """The model as a metric attribute: only names that ever worked, and not too many."""
        if model is None or model in self._models:
            return model
        if outcome is Outcome.REJECTED or len(self._models) >= MOST_MODELS:
            return OTHER
        self._models.add(model)
        return model

    def _failed(self, attributes: dict[str, str | int], timeline: Timeline) -> dict[str, str | int]:
        if timeline.error_type is None:
            return attributes
        return attributes | {semconv.ERROR_TYPE: self._bounded(timeline.error_type)}

    def _bounded(self, word: str) -> str:
        """A word of low cardinality, or `_OTHER` once there have been too many of them."""
        if word not in self._words:
            if len(self._words) >= MOST_WORDS:
                return OTHER
            self._words.add(word)
        return word

    def _record_server(
        self, timeline: Timeline, attributes: dict[str, str | int], context: Context
    ) -> None:
        if timeline.outcome is Outcome.OK:
            _record(self._server_ttft, timeline.ttft_us, attributes, context)
            _record(self._server_tpot, timeline.tpot_us, attributes, context)
        _record(self._server_duration, timeline.e2e_us, self._failed(attributes, timeline), context)

    def _record_client(
        self,
        timeline: Timeline,
        attributes: dict[str, str | int],
        info: RequestInfo,
        context: Context,
    ) -> None:
        if info.server_address is not None:
            attributes[semconv.SERVER_ADDRESS] = info.server_address
        if info.server_port is not None:
            attributes[semconv.SERVER_PORT] = info.server_port
        self._record_tokens(timeline, attributes, context)
        _record(self._client_duration, timeline.e2e_us, self._failed(attributes, timeline), context)

    def _record_tokens(
        self, timeline: Timeline, attributes: dict[str, str | int], context: Context
    ) -> None:
        counts = (("input", timeline.tokens.input), ("output", timeline.tokens.output))
        separate = {"input": self._input_tokens, "output": self._output_tokens}
        for kind, count in counts:
            if count is None:
                continue
            if self._token_usage is not None:
                typed = attributes | {semconv.TOKEN_TYPE: kind}
                self._token_usage.record(count, typed, context)
            elif (histogram := separate[kind]) is not None:
                histogram.record(count, attributes, context)

    def _record_phases(
        self, timeline: Timeline, model: str | None, operation: str, context: Context
    ) -> None:
        key = (operation, timeline.side, model)
        rows = self._phase_rows.get(key)
        if rows is None:
            rows = self._phase_rows[key] = _phase_rows(operation, timeline.side, model)
        for each in timeline.phases:
            self._phase.record(each.duration_us / 1e6, rows[each.phase], context)


def _phase_rows(operation: str, side: Side, model: str | None) -> dict[Phase, dict[str, str]]:
    """The attributes of each phase's record, made once for each model."""
    shared = {semconv.OPERATION: operation, semconv.SIDE: side.value}
    if model is not None:
        shared[semconv.REQUEST_MODEL] = model
    return {phase: {semconv.PHASE: phase.value, **shared} for phase in Phase}


def _record(
    histogram: Histogram, us: int | None, attributes: dict[str, str | int], context: Context
) -> None:
    if us is not None:
        histogram.record(us / 1e6, attributes, context)
