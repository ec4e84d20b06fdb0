"""What engines write on their own spans, one row per engine.

The row is data for two readers, `read` in Python and `ottl` in the Collector, and holds nothing
that only one of them could do. Patterns match a whole text, and mean the same in both languages'
regular expressions.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from otel_llm import semconv
from otel_llm.timeline import Outcome, Part, Phase


class Unit(Enum):
    """How an engine writes a duration; the value is the pattern of the text, None for a number."""

    SECONDS = None
    MILLISECONDS_TEXT = "[0-9]{1,10}([.][0-9]{1,6})?"
    RUST = (
        "[0-9]{1,9}ns|[0-9]{1,9}([.][0-9]{1,3})?µs|[0-9]{1,9}([.][0-9]{1,6})?ms"
        "|[0-9]{1,7}([.][0-9]{1,9})?s"
    )
    """Rust's `Debug` of a `Duration`; it has nanoseconds, and never more digits than those."""


class Time(NamedTuple):
    """An attribute that holds a duration."""

    attribute: str
    unit: Unit = Unit.SECONDS


class Stretch(NamedTuple):
    """A phase as the engine states it, or as what is left of `time` after `without`."""

    phase: Phase
    time: Time
    without: Time | None = None


class Verdict(NamedTuple):
    """What an attribute whose text matches `pattern` says of the end.

    `error_type` None on a failure means the text itself. `reason` is the finish reason it tells.
    """

    attribute: str
    pattern: str
    outcome: Outcome
    error_type: str | None = None
    reason: str | None = None

    @property
    def names_error(self) -> bool:
        """Whether the text is the error's type, so that it has to be a text."""
        return self.outcome is not Outcome.OK and self.error_type is None


class Copy(NamedTuple):
    """A count of at least `least`, or with `pattern` a text, under the name that we give it."""

    attribute: str
    target: str
    least: int = 0
    pattern: str | None = None


class Named(NamedTuple):
    """What a span's name says: a name that matches `pattern` gives `target` that value."""

    pattern: str
    target: str
    value: str


class Row(NamedTuple):
    """One engine's span of a request.

    It is known by its `name`, its `scope`'s name where that says anything, and an attribute that
    no other span has. `outcome` is what the span's mere being there says. `stages` are spans of
    the same scope that show one phase each.
    """

    engine: str
    name: str
    marker: str
    scope: str | None = None
    outcome: Outcome | None = None
    verdicts: tuple[Verdict, ...] = ()
    named: tuple[Named, ...] = ()
    ttft: Time | None = None
    phases: tuple[Stretch, ...] = ()
    values: tuple[tuple[str, Time], ...] = ()
    copies: tuple[Copy, ...] = ()
    stages: tuple[tuple[str, Phase], ...] = ()


def _latency(name: str) -> Time:
    return Time(semconv.LATENCY_ALIASES[name])


_REASON = '[a-z_]{1,32}"(, ?"[a-z_]{1,32}")*'
REASONS = rf'\["{_REASON}\]'
"""Finish reasons as JSON, the form in which some engines write a list."""
_OF_REASONS = (
    Verdict(semconv.FINISH_REASONS, r'\[.*"cancelled".*\]', Outcome.CANCELLED, "cancelled"),
    *(
        Verdict(semconv.FINISH_REASONS, rf'\[.*"{failure}".*\]', Outcome.ERROR, failure)
        for failure in ("abort", "error", "timeout")
    ),
    Verdict(semconv.FINISH_REASONS, REASONS, Outcome.OK),
)
_TOKENS = (
    Copy(semconv.NATIVE_PROMPT_TOKENS, semconv.INPUT_TOKENS),
    Copy(semconv.NATIVE_COMPLETION_TOKENS, semconv.OUTPUT_TOKENS),
    Copy(semconv.NATIVE_CHOICES, semconv.CHOICE_COUNT, least=2),
)

VLLM = Row(
    engine="vllm",
    name="llm_request",
    scope="vllm[.].*",
    marker=semconv.LATENCY_ALIASES["queue"],
    outcome=Outcome.OK,  # a request that is aborted leaves no span
    ttft=_latency("ttft"),
    phases=(
        Stretch(Phase.QUEUE, _latency("queue")),
        Stretch(Phase.PREFILL, _latency("prefill")),
        Stretch(Phase.DECODE, _latency("decode")),
    ),
    copies=_TOKENS,
)
SGLANG = Row(
    engine="sglang",
    name="(prefill|decode|) Req .*",
    scope="sglang server",
    marker=semconv.LATENCY_ALIASES["e2e"],
    verdicts=_OF_REASONS,
    named=tuple(Named(f"{role} Req .*", semconv.ROLE, role) for role in ("prefill", "decode")),
    ttft=_latency("ttft"),
    phases=(
        Stretch(Phase.PREPROCESS, _latency("e2e"), without=Time(semconv.NATIVE_INFERENCE)),
        Stretch(Phase.DECODE, _latency("decode")),
    ),
    # It begins at dispatch, so that it holds the queue.
    values=((semconv.reported_us(Phase.PREFILL), _latency("prefill")),),
    copies=(*_TOKENS, Copy(semconv.NATIVE_CACHED_TOKENS, semconv.CACHE_READ_TOKENS)),
    stages=(
        ("tokenize", Phase.PREPROCESS),
        ("prefill_waiting", Phase.QUEUE),
        ("prefill_forward", Phase.PREFILL),
        ("decode_forward", Phase.DECODE),
    ),
)
TENSORRT_LLM = Row(
    engine="tensorrt_llm",
    name="llm_request",
    scope="trt[.]llm",
    marker=semconv.LATENCY_ALIASES["e2e"],
    verdicts=_OF_REASONS,
    ttft=_latency("ttft"),
    phases=(
        Stretch(Phase.QUEUE, _latency("queue")),
        Stretch(Phase.PREFILL, _latency("ttft"), without=_latency("queue")),
        Stretch(Phase.DECODE, _latency("e2e"), without=_latency("ttft")),  # up to the last token
    ),
    values=((semconv.part(Part.QUEUE_KV_TRANSFER_US), Time(semconv.NATIVE_KV_TRANSFER)),),
    copies=_TOKENS,
)
TGI = Row(
    engine="tgi",
    name="generate|generate_stream|chat_completions|completions",
    marker="inference_time",
    outcome=Outcome.OK,  # times are recorded with the last token only
    named=(
        Named("chat_completions", semconv.OPERATION, "chat"),
        Named("generate|generate_stream|completions", semconv.OPERATION, "text_completion"),
    ),
    phases=(
        Stretch(Phase.PREPROCESS, Time("validation_time", Unit.RUST)),
        Stretch(Phase.QUEUE, Time("queue_time", Unit.RUST)),
    ),
    values=((semconv.REPORTED_INFERENCE_US, Time("inference_time", Unit.RUST)),),
)
DYNAMO = Row(
    engine="dynamo",
    name="engine[.]generate",
    marker="disagg_role",
    verdicts=(
        Verdict("cancelled", "true", Outcome.CANCELLED, "cancelled"),
        Verdict("finish_reason", "Cancelled|Dropped", Outcome.CANCELLED, "cancelled"),
        Verdict("error_kind", "[A-Za-z0-9_]{1,64}", Outcome.ERROR),
        Verdict("finish_reason", "Error.*", Outcome.ERROR, "error"),
        Verdict("finish_reason", "EoS|Stop", Outcome.OK, reason="stop"),
        Verdict("finish_reason", "Length", Outcome.OK, reason="length"),
        Verdict("finish_reason", "ContentFilter", Outcome.OK, reason="content_filter"),
    ),
    ttft=Time("ttft_ms", Unit.MILLISECONDS_TEXT),
    values=(
        (semconv.ITL_P50_US, Time("itl_p50_ms", Unit.MILLISECONDS_TEXT)),
        (semconv.ITL_P99_US, Time("itl_p99_ms", Unit.MILLISECONDS_TEXT)),
        (semconv.ITL_MAX_US, Time("itl_max_ms", Unit.MILLISECONDS_TEXT)),
    ),
    copies=(
        Copy("input_tokens", semconv.INPUT_TOKENS),
        Copy("output_tokens", semconv.OUTPUT_TOKENS),
        Copy("model", semconv.REQUEST_MODEL, pattern=".{1,256}"),
        Copy("disagg_role", semconv.ROLE, pattern="prefill|decode"),
    ),
)
ROWS = (VLLM, SGLANG, TENSORRT_LLM, TGI, DYNAMO)
