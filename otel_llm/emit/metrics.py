"""Histograms of every request, sampled or not, with the conventions' buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from opentelemetry.context import Context
from opentelemetry.metrics import (
    CallbackOptions,
    Histogram,
    Meter,
    MeterProvider,
    NoOpMeter,
    Observation,
)

from otel_llm import semconv
from otel_llm._version import __version__
from otel_llm.emit.objectives import Objective, Verdict
from otel_llm.emit.request import RequestInfo
from otel_llm.emit.settings import EmitSettings
from otel_llm.emit.values import clean_value
from otel_llm.timeline import Outcome, Phase, Side, Timeline

OTHER = "_OTHER"
MOST_WORDS = 200
"""Most error types, operations and providers together; applications may invent them."""
MOST_MODELS = 200
"""More models than this in one process are recorded as `_OTHER`: names come from clients."""
MOST_VALUES = 50
"""Most values of one attribute that the application puts on metrics; further ones are `_OTHER`."""
LONGEST_VALUE = 64
Extra = tuple[tuple[str, str], ...]
"""Attributes that the application puts on metrics, and their values for one request."""


Histograms = Callable[[str, str, str, Sequence[float], str], Histogram]
"""Makes histograms that are cheaper than the meter's own: see `export.tallies`.

Of a name, a unit, a description, the upper bounds of buckets, and the scope's schema URL.
"""


class Instruments:
    """The histograms of one meter provider, and how a timeline is recorded into them."""

    def __init__(
        self, provider: MeterProvider, settings: EmitSettings, own: Histograms | None = None
    ) -> None:
        vocabulary = settings.vocabulary
        meter = provider.get_meter(semconv.SCOPE, __version__, vocabulary.schema_url)
        self.enabled = not isinstance(meter, NoOpMeter)
        self._models: set[str] = set()
        self._words: set[str] = set()
        self._phase_rows: dict[
            tuple[str, Side, str | None, Extra], dict[Phase, dict[str, str]]
        ] = {}
        self._values: dict[str, set[str]] = {key: set() for key in settings.metric_attributes}

        def histogram(
            name: str, unit: str, description: str, buckets: tuple[float, ...]
        ) -> Histogram:
            if own is not None:
                return own(name, unit, description, buckets, vocabulary.schema_url)
            return meter.create_histogram(
                name, unit, description, explicit_bucket_boundaries_advisory=buckets
            )

        def seconds(name: str, buckets: tuple[float, ...], description: str) -> Histogram:
            return histogram(name, semconv.SECONDS, description, buckets)

        def tokens(name: str | None) -> Histogram | None:
            described = semconv.TOKENS, "Tokens of a request.", semconv.TOKEN_BUCKETS
            return histogram(name, *described) if name else None

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
        self._client_first_chunk = seconds(
            vocabulary.client_first_chunk, semconv.DURATION_BUCKETS, "Call to first chunk."
        )
        self._client_chunk_gap = settings.chunk_metrics and seconds(
            vocabulary.client_chunk_gap, semconv.DURATION_BUCKETS, "Gap between two chunks."
        )
        self._phase = seconds(
            semconv.PHASE_DURATION, semconv.PHASE_BUCKETS, "How long one phase took."
        )
        self._token_usage = tokens(vocabulary.token_usage)
        self._input_tokens = tokens(vocabulary.input_token_usage)
        self._output_tokens = tokens(vocabulary.output_token_usage)
        self._slo = _Slo(meter, settings.slo) if settings.slo else None

    def know(self, models: Iterable[str]) -> None:
        """Names of models that exist, so that they are told apart before they ever answered."""
        self._models.update(models)

    def record(
        self,
        info: RequestInfo,
        timeline: Timeline,
        context: Context,
        given: Mapping[str, object],
        verdicts: Sequence[Verdict],
        *,
        phases_only: bool = False,
        gaps: Iterable[float] = (),
    ) -> None:
        """Record one finished request.

        *context* carries its span, for the exemplars; *given* are attributes that the application
        added; *verdicts* say which objectives were met; *gaps* are those between a client's
        chunks, seconds. With *phases_only* another library
        records what the conventions ask for.
        """
        extra = self._extra(given, info.attributes) if self._values else ()
        attributes: dict[str, str | int] = {
            semconv.OPERATION: self._bounded(info.operation),
            semconv.PROVIDER: self._bounded(info.provider),
        }
        model = self._bounded_model(info.model, timeline.outcome)
        if model is not None:
            attributes[semconv.REQUEST_MODEL] = model
        if extra:
            attributes = {**dict(extra), **attributes}
        if phases_only:
            pass
        elif timeline.side is Side.CLIENT:
            self._record_client(timeline, attributes, info, context)
            if self._client_chunk_gap:
                for gap in gaps:
                    self._client_chunk_gap.record(gap, attributes, context)
        else:
            self._record_server(timeline, attributes, context)
        self._record_phases(
            timeline, (self._bounded(info.operation), timeline.side, model, extra), context
        )
        if self._slo is not None:
            self._slo.record(verdicts, timeline.side, model, extra, context)

    def _extra(self, given: Mapping[str, object], at_start: Mapping[str, object]) -> Extra:
        """The attributes of a request that are to be on metrics, as short texts."""
        found = ((key, _short_text(given.get(key, at_start.get(key)))) for key in self._values)
        return tuple((key, self._bounded_value(key, text)) for key, text in found if text)

    def _bounded_value(self, key: str, text: str) -> str:
        known = self._values[key]
        if text not in known:
            if len(known) >= MOST_VALUES:
                return OTHER
            known.add(text)
        return text

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
        _record(self._client_first_chunk, timeline.first_chunk_us, attributes, context)
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
        self, timeline: Timeline, key: tuple[str, Side, str | None, Extra], context: Context
    ) -> None:
        rows = self._phase_rows.get(key)
        if rows is None:
            rows = self._phase_rows[key] = _phase_rows(*key)
        for each in timeline.phases:
            self._phase.record(each.duration_us / 1e6, rows[each.phase], context)


class _Slo:
    """The counter of requests that met or missed objectives, and the objectives' limits."""

    def __init__(self, meter: Meter, objectives: Sequence[Objective]) -> None:
        self._names = [each.name for each in objectives]
        self._rows: dict[tuple[Side, str | None, Extra], dict[Verdict, dict[str, str]]] = {}
        self._requests = meter.create_counter(
            semconv.SLO_REQUESTS, semconv.REQUESTS, "Requests that met or missed an objective."
        )
        meter.create_observable_gauge(
            semconv.SLO_THRESHOLD,
            [partial(_limits, objectives)],
            semconv.SECONDS,
            "The longest time that meets an objective.",
        )

    def record(
        self,
        verdicts: Sequence[Verdict],
        side: Side,
        model: str | None,
        extra: Extra,
        context: Context,
    ) -> None:
        key = (side, model, extra)
        rows = self._rows.get(key)
        if rows is None:
            rows = self._rows[key] = _slo_rows(self._names, *key)
            for row in rows.values():  # so that the first miss is seen as an increase
                self._requests.add(0, row, Context())
        for verdict in verdicts:
            self._requests.add(1, rows[verdict], context)


def _limits(objectives: Sequence[Objective], _options: CallbackOptions) -> list[Observation]:
    return [
        Observation(limit_ns / 1e9, {semconv.SLO_OBJECTIVE: name})
        for name, limit_ns in objectives
        if limit_ns is not None
    ]


def _phase_rows(
    operation: str, side: Side, model: str | None, extra: Extra
) -> dict[Phase, dict[str, str]]:
    """The attributes of each phase's record, made once for each model."""
    shared = _shared(side, model, extra) | {semconv.OPERATION: operation}
    return {phase: {**shared, semconv.PHASE: phase.value} for phase in Phase}


def _slo_rows(
    names: Sequence[str], side: Side, model: str | None, extra: Extra
) -> dict[Verdict, dict[str, str]]:
    """The attributes of each verdict's record, made once for each model."""
    shared = _shared(side, model, extra)
    return {
        (name, met): {
            **shared,
            semconv.SLO_OBJECTIVE: name,
            semconv.SLO_RESULT: "met" if met else "missed",
        }
        for name in names
        for met in (True, False)
    }


def _shared(side: Side, model: str | None, extra: Extra) -> dict[str, str]:
    known = {} if model is None else {semconv.REQUEST_MODEL: model}
    return {**dict(extra), semconv.SIDE: side.value, **known}


def _short_text(raw: object) -> str | None:
    """*raw* as the value of a metric attribute; None if it is no single value."""
    value = clean_value(raw)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)[:LONGEST_VALUE] if isinstance(value, str | int | float) else None


def _record(
    histogram: Histogram, us: int | None, attributes: dict[str, str | int], context: Context
) -> None:
    if us is not None:
        histogram.record(us / 1e6, attributes, context)
