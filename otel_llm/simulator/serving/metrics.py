"""`/metrics` in Prometheus' text format, with the families of vLLM 0.32 in their order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from otel_llm.simulator.engine import Engine, Step
from otel_llm.simulator.serving.openai import Wanted
from otel_llm.simulator.serving.truth import ServingTruth
from otel_llm.simulator.truth import RequestTruth

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_PER_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_STEP_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))
_FEW = (1.0, 2.0, 5.0, 10.0, 20.0)
_PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
_HISTOGRAMS = {
    "request_prompt_tokens": ((), "Prompt tokens of a request."),
    "request_generation_tokens": ((), "Generated tokens of a sequence."),
    "iteration_tokens_total": (_STEP_TOKENS, "Tokens in a step of the engine."),
    "request_max_num_generation_tokens": ((), "Most tokens generated for a request."),
    "request_params_n": (_FEW, "Sequences asked for."),
    "request_params_max_tokens": ((), "The limit asked for, tokens."),
    "time_to_first_token_seconds": (_TTFT, "Seconds to the first token."),
    "inter_token_latency_seconds": (_PER_TOKEN, "Seconds between two outputs."),
    "request_time_per_output_token_seconds": (_PER_TOKEN, "Seconds per token of a request."),
    "e2e_request_latency_seconds": (_LATENCY, "Seconds that a request took."),
    "request_queue_time_seconds": (_LATENCY, "Seconds that a request waited."),
    "request_inference_time_seconds": (_LATENCY, "Seconds that a request was computed."),
    "request_prefill_time_seconds": (_LATENCY, "Seconds up to the first token of that."),
    "request_decode_time_seconds": (_LATENCY, "Seconds after the first token of that."),
    "request_num_preemptions": (_PREEMPTIONS, "How often a request left the batch."),
    "request_prefill_kv_computed_tokens": ((), "Prompt tokens that no cache had."),
}
"""Bounds and meaning; those without bounds have some up to the longest request."""


@dataclass(slots=True)
class Histogram:
    """Values by the first bound that is not below them."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """One more value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Histograms:
    """All histograms of one server.

    Args:
        longest: Tokens of the longest request.
        created_s: When the server was started, seconds since the Unix epoch.
    """

    def __init__(self, longest: int, created_s: float) -> None:
        self.created_s = created_s
        self.by_name = {
            name: Histogram(bounds or _up_to(longest)) for name, (bounds, _) in _HISTOGRAMS.items()
        }

    def step(self, step: Step) -> None:
        """A step of the engine was begun."""
        if tokens := step.prefill_tokens + step.decode_tokens:
            self.by_name["iteration_tokens_total"].add(tokens)

    def request(self, truth: ServingTruth, wanted: Wanted) -> None:
        """A request has ended; one that was given up is not counted, as in vLLM."""
        if not truth.engine or any(
            each.finish_reason not in {"stop", "length"} for each in truth.engine
        ):
            return
        self._add("request_params_n", wanted.n)
        most = max(each.output_tokens for each in truth.engine)
        self._add("request_max_num_generation_tokens", most)
        for each in truth.engine:
            self._sequence(each, truth.received_ns, wanted)

    def _add(self, name: str, value: float) -> None:
        self.by_name[name].add(value)

    def _sequence(self, truth: RequestTruth, received_ns: int, wanted: Wanted) -> None:
        tokens = truth.output_tokens
        scheduled, first = truth.scheduled_ns or 0, truth.first_token_ns or 0
        last = truth.last_token_ns or 0
        for before, after in pairwise(truth.output_ns):
            self._add("inter_token_latency_seconds", (after[0] - before[0]) / 1e9)
        self._add("request_prompt_tokens", truth.prompt_tokens)
        self._add("request_generation_tokens", tokens)
        if wanted.max_tokens is not None:
            self._add("request_params_max_tokens", wanted.max_tokens)
        self._add("time_to_first_token_seconds", (first - received_ns) / 1e9)
        mean_s = (last - first) / 1e9 / (tokens - 1) if tokens > 1 else 0.0
        self._add("request_time_per_output_token_seconds", mean_s)
        self._add("e2e_request_latency_seconds", (last - received_ns) / 1e9)
        self._add("request_queue_time_seconds", (scheduled - truth.queued_ns) / 1e9)
        self._add("request_inference_time_seconds", (last - scheduled) / 1e9)
        self._add("request_prefill_time_seconds", (first - scheduled) / 1e9)
        self._add("request_decode_time_seconds", (last - first) / 1e9)
        self._add("request_num_preemptions", len(truth.preemptions))
        computed = truth.prompt_tokens - truth.cached_tokens
        self._add("request_prefill_kv_computed_tokens", computed)


def _up_to(longest: int) -> list[float]:
    """1, 2, 5, 10, 20, 50 and so on, as far as *longest* goes."""
    bounds = (float(digit * 10**power) for power in range(9) for digit in (1, 2, 5))
    return [bound for bound in bounds if bound <= longest]


_Labels = dict[str, str]
_Values = Iterable[tuple[_Labels, float]]


def exposition(engine: Engine, model: str, histograms: Histograms, rejections: int) -> str:
    """The page."""
    page = _Page({"engine": "0", "model_name": model}, histograms.created_s)
    _write_gauges(page, engine)
    _write_counters(page, engine, rejections)
    for name, (_, about) in _HISTOGRAMS.items():
        page.histogram(name, about, histograms.by_name[name])
    config = {
        "block_size": str(engine.config.block_size),
        "enable_prefix_caching": str(engine.config.prefix_caching),
        "engine": "0",
        "num_gpu_blocks": str(engine.config.num_blocks),
    }
    page.gauge("cache_config_info", "Settings of the KV cache.", [(config, 1.0)], bare=True)
    return "".join(page.lines)


def _write_gauges(page: _Page, engine: Engine) -> None:
    stats = engine.stats
    for unit in ("flops", "read_bytes", "write_bytes"):
        page.counter(f"estimated_{unit}_per_gpu", f"Estimated {unit} of a GPU.", [({}, 0)])
    page.gauge("num_requests_running", "Requests that are computed.", [({}, stats.running)])
    page.gauge("num_requests_waiting", "Requests that wait.", [({}, stats.waiting)])
    reasons = [({"reason": "capacity"}, stats.waiting), ({"reason": "deferred"}, 0)]
    page.gauge("num_requests_waiting_by_reason", "Requests that wait, and for what.", reasons)
    states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    asleep = [({"sleep_state": name}, value) for name, value in states.items()]
    page.gauge("engine_sleep_state", "Whether the engine sleeps.", asleep)
    page.gauge("kv_cache_usage_perc", "KV cache in use, 0 to 1.", [({}, stats.kv_usage)])


def _write_counters(page: _Page, engine: Engine, rejections: int) -> None:
    stats = engine.stats
    hits = stats.prefix_hits
    page.counter("prefix_cache_queries", "Tokens looked up.", [({}, stats.prefix_queries)])
    page.counter("prefix_cache_hits", "Tokens found.", [({}, hits)])
    for name in ("external_prefix_cache", "mm_cache"):
        page.counter(f"{name}_queries", "Looked up.", [({}, 0)])
        page.counter(f"{name}_hits", "Found.", [({}, 0)])
    page.counter("num_preemptions", "Times a request left the batch.", [({}, stats.preemptions)])
    page.counter("prompt_tokens", "Prompt tokens.", [({}, stats.prompt_tokens)])
    computed = max(0, stats.prompt_tokens - hits)
    sources = {"local_compute": computed, "local_cache_hit": hits, "external_kv_transfer": 0}
    page.counter("prompt_tokens_by_source", "Prompt tokens.", _each("source", sources))
    page.counter("prompt_tokens_cached", "Prompt tokens from a cache.", [({}, hits)])
    tiers = {"device": hits, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 0}
    page.counter("prompt_tokens_cached_by_source", "Such, and from where.", _each("source", tiers))
    page.counter("generation_tokens", "Generated tokens.", [({}, stats.generation_tokens)])
    reasons = ("stop", "length", "abort", "error", "repetition")
    ended = {reason: stats.ended.get(reason, 0) for reason in reasons}
    page.counter("request_success", "Requests that ended.", _each("finished_reason", ended))
    refused = {"max_num_queued_reqs": rejections, "max_num_queued_tokens": 0}
    page.counter("admission_rejections", "Refused.", _each("reason", refused), engine=False)


def _each(label: str, values: dict[str, int]) -> list[tuple[_Labels, float]]:
    return [({label: name}, value) for name, value in values.items()]


class _Page:
    """Lines of the page; labels come in the order of their names."""

    def __init__(self, labels: _Labels, created_s: float) -> None:
        self.lines: list[str] = []
        self._labels = labels
        self._created_s = created_s

    def gauge(self, name: str, about: str, values: _Values, *, bare: bool = False) -> None:
        """A family of gauges; *bare* without the labels that all others have."""
        self._family(f"vllm:{name}", about, "gauge", values, {} if bare else self._labels)

    def counter(self, name: str, about: str, values: _Values, *, engine: bool = True) -> None:
        """A family of counters, and when they began."""
        own = {key: text for key, text in self._labels.items() if engine or key != "engine"}
        values = list(values)
        self._family(f"vllm:{name}_total", about, "counter", values, own)
        begun = [(labels, self._created_s) for labels, _ in values]
        self._family(f"vllm:{name}_created", about, "gauge", begun, own)

    def histogram(self, name: str, about: str, histogram: Histogram) -> None:
        """A family with one histogram, and when it began."""
        name = f"vllm:{name}"
        self._head(name, about, "histogram")
        total = sum(histogram.counts)
        below = list(zip(histogram.bounds, accumulate(histogram.counts), strict=False))
        for bound, count in (*below, (float("inf"), total)):
            self._line(f"{name}_bucket", {**self._labels, "le": _number(bound)}, count)
        self._line(f"{name}_count", self._labels, total)
        self._line(f"{name}_sum", self._labels, histogram.sum)
        begun: _Values = [({}, self._created_s)]
        self._family(f"{name}_created", about, "gauge", begun, self._labels)

    def _family(self, name: str, about: str, kind: str, values: _Values, common: _Labels) -> None:
        self._head(name, about, kind)
        for labels, value in values:
            self._line(name, {**common, **labels}, value)

    def _head(self, name: str, about: str, kind: str) -> None:
        self.lines.append(f"# HELP {name} {about}\n# TYPE {name} {kind}\n")

    def _line(self, name: str, labels: _Labels, value: float) -> None:
        told = ",".join(_labelled(labels))
        self.lines.append(f"{name}{{{told}}} {_number(value)}\n")


def _labelled(labels: _Labels) -> Iterator[str]:
    for name, text in sorted(labels.items()):
        escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        yield f'{name}="{escaped}"'


def _number(value: float) -> str:
    """As Prometheus' client for Python writes it: an exponent from a million on."""
    if value == float("inf"):
        return "+Inf"
    text = repr(float(value))
    whole, _, rest = text.partition(".")
    if len(whole) < 7 or "e" in rest:
        return text
    digits = (whole + rest).rstrip("0")
    mantissa = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{mantissa}e+{len(whole) - 1:02d}"
