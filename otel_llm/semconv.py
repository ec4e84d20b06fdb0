"""Every name that otel_llm writes: attributes, spans, metrics, units and buckets.

Names of the GenAI conventions come from two vocabularies (`Vocabulary`): `1.41`, the last one
published with the core conventions, and `genai-main`, the conventions' own repository. What they
share is a plain constant. Names under `otel_llm.` are ours: units are the suffix (`_us` is whole
microseconds), and an attribute that is unknown is not written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SCOPE: Final = "otel_llm"
OURS: Final = "otel_llm."
"""With this begin the attributes that are ours alone."""

# --- GenAI conventions, the same in both vocabularies -------------------------------------
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
REQUEST_STREAM: Final = "gen_ai.request.stream"
CHOICE_COUNT: Final = "gen_ai.request.choice.count"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
TEMPERATURE: Final = "gen_ai.request.temperature"
TOP_P: Final = "gen_ai.request.top_p"
TOP_K: Final = "gen_ai.request.top_k"
SEED: Final = "gen_ai.request.seed"
FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"
OUTPUT_TYPE: Final = "gen_ai.output.type"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105

# De-facto names of vLLM and SGLang (seconds, double): aliases, off by default.
LATENCY_ALIASES: Final = {
    "ttft": "gen_ai.latency.time_to_first_token",
    "e2e": "gen_ai.latency.e2e",
    "queue": "gen_ai.latency.time_in_queue",
    "prefill": "gen_ai.latency.time_in_model_prefill",
    "decode": "gen_ai.latency.time_in_model_decode",
}

# --- Other libraries' marks on the spans they make for a call of a language model ----------
OPENINFERENCE_KIND: Final = "openinference.span.kind"
LLM_REQUEST_TYPE: Final = "llm.request.type"

# --- Core conventions ---------------------------------------------------------------------
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
SERVICE_NAME: Final = "service.name"
HTTP_METHOD: Final = "http.request.method"
HTTP_STATUS: Final = "http.response.status_code"
HTTP_ROUTE: Final = "http.route"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"
NETWORK_PROTOCOL_VERSION: Final = "network.protocol.version"

# --- Resource: the process, and where it runs ---------------------------------------------
SERVICE_INSTANCE: Final = "service.instance.id"
HOST_NAME: Final = "host.name"
HOST_ARCH: Final = "host.arch"
HOST_ID: Final = "host.id"
OS_TYPE: Final = "os.type"
PROCESS_PID: Final = "process.pid"
PROCESS_EXECUTABLE: Final = "process.executable.name"
RUNTIME_NAME: Final = "process.runtime.name"
RUNTIME_VERSION: Final = "process.runtime.version"
CONTAINER_ID: Final = "container.id"
POD_NAME: Final = "k8s.pod.name"
POD_UID: Final = "k8s.pod.uid"
NAMESPACE_NAME: Final = "k8s.namespace.name"
NODE_NAME: Final = "k8s.node.name"
DEPLOYMENT_NAME: Final = "k8s.deployment.name"

# --- otel_llm: identity -------------------------------------------------------------------
SIDE: Final = "otel_llm.side"
OUTCOME: Final = "otel_llm.outcome"
TENANT: Final = "otel_llm.tenant"
LORA: Final = "otel_llm.lora"
PRIORITY: Final = "otel_llm.request.priority"
REQUEST_ID: Final = "otel_llm.request.id"
REPLICA: Final = "otel_llm.replica"
ROLE: Final = "otel_llm.role"

ENGINE: Final = "otel_llm.engine"
"""Prefix of the resource attributes that describe an engine's configuration."""

DRAFT_TOKENS: Final = "otel_llm.spec_decode.draft_tokens"
ACCEPTED_TOKENS: Final = "otel_llm.spec_decode.accepted_tokens"

INPUT_IMAGES: Final = "otel_llm.input.images"
INPUT_AUDIO: Final = "otel_llm.input.audio"


# --- otel_llm: the batch span of an offline call ------------------------------------------
BATCH_REQUESTS: Final = "otel_llm.batch.requests"
BATCH_UNTRACED: Final = "otel_llm.batch.untraced"


# --- otel_llm: the replica, as of the engine's latest step (integers) ---------------------
@dataclass(frozen=True, slots=True)
class ReplicaNames:
    """Attributes for the state of a replica at one moment of a request."""

    running: str
    waiting: str
    kv_cache_percent: str
    batch_tokens: str


def _replica_names(when: str) -> ReplicaNames:
    names = ("running", "waiting", "kv_cache_percent", "batch_tokens")
    return ReplicaNames(*(f"otel_llm.{when}.{name}" for name in names))


REPLICA_WHEN_QUEUED: Final = _replica_names("queued")
REPLICA_WHEN_FINISHED: Final = _replica_names("finished")

# --- otel_llm: the summary (integers) -----------------------------------------------------
E2E_US: Final = "otel_llm.e2e_us"
TTFT_US: Final = "otel_llm.ttft_us"
TPOT_US: Final = "otel_llm.tpot_us"
UNACCOUNTED_US: Final = "otel_llm.unaccounted_us"
ITL_P50_US: Final = "otel_llm.itl_p50_us"
ITL_P99_US: Final = "otel_llm.itl_p99_us"
ITL_MAX_US: Final = "otel_llm.itl_max_us"
CHUNK_GAP_P50_US: Final = "otel_llm.chunk_gap_p50_us"
CHUNK_GAP_P99_US: Final = "otel_llm.chunk_gap_p99_us"
CHUNK_GAP_MAX_US: Final = "otel_llm.chunk_gap_max_us"
TOKENS_PER_OUTPUT: Final = "otel_llm.tokens_per_output"
STALLS: Final = "otel_llm.stalls"
STALL_US: Final = "otel_llm.stall_us"
CONSUMER_STALL_US: Final = "otel_llm.consumer_stall_us"
BUFFERED_CHUNKS: Final = "otel_llm.stream.buffered_chunks"
INCOMPLETE: Final = "otel_llm.stream.incomplete"
ATTEMPTS: Final = "otel_llm.attempts"
PREEMPTIONS: Final = "otel_llm.preemptions"
SOURCES: Final = "otel_llm.sources"
ENDED_IN: Final = "otel_llm.ended_in"
PHASE_SOURCE: Final = "otel_llm.phase.source"
PHASE: Final = "phase"


def phase_us(phase: str) -> str:
    """Attribute for how long a phase took, whole microseconds."""
    return f"otel_llm.{phase}_us"


def reported_us(phase: str) -> str:
    """Attribute for what an engine said of a phase when it did not fit, whole microseconds."""
    return f"otel_llm.reported.{phase}_us"


def part(name: str) -> str:
    """Attribute for a part inside a phase, such as ``decode.preempted_us``."""
    return f"otel_llm.{name}"


def phase_span(phase: str) -> str:
    """Name of the span that shows one phase."""
    return f"llm.{phase}"


def context_key(name: str) -> str:
    """Attribute for an allow-listed header or baggage entry."""
    return f"otel_llm.context.{name}"


def content_length(attribute: str) -> str:
    """Attribute for the original length, in characters, of content that was cut."""
    return f"otel_llm.content.length.{attribute.removeprefix('gen_ai.')}"


# --- Metrics ------------------------------------------------------------------------------
SECONDS: Final = "s"
TOKENS: Final = "{token}"
SERVER_DURATION: Final = "gen_ai.server.request.duration"
SERVER_TTFT: Final = "gen_ai.server.time_to_first_token"
SERVER_TPOT: Final = "gen_ai.server.time_per_output_token"
PHASE_DURATION: Final = "otel_llm.phase.duration"

DURATION_BUCKETS: Final = tuple(0.01 * 2**i for i in range(14))
TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
TPOT_BUCKETS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKEN_BUCKETS: Final = tuple(float(4**i) for i in range(14))
PHASE_BUCKETS: Final = tuple(0.0005 * 2**i for i in range(19))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The names on which the two versions of the GenAI conventions differ.

    `token_usage` is the 1.41 histogram with `gen_ai.token.type`; where it is absent the newer
    pair of histograms `input_token_usage` and `output_token_usage` is written instead.
    """

    name: str
    schema_url: str
    cache_write_tokens: str
    client_duration: str
    client_first_chunk: str
    client_chunk_gap: str
    token_usage: str | None
    input_token_usage: str | None = None
    output_token_usage: str | None = None
    top_k_is_int: bool = False


V1_41: Final = Vocabulary(
    name="1.41",
    schema_url="https://opentelemetry.io/schemas/1.41.0",
    cache_write_tokens="gen_ai.usage.cache_creation.input_tokens",
    client_duration="gen_ai.client.operation.duration",
    client_first_chunk="gen_ai.client.operation.time_to_first_chunk",
    client_chunk_gap="gen_ai.client.operation.time_per_output_chunk",
    token_usage="gen_ai.client.token.usage",  # noqa: S106
)
GENAI_MAIN: Final = Vocabulary(
    name="genai-main",
    schema_url="https://opentelemetry.io/schemas/gen-ai/1.42.0",
    cache_write_tokens="gen_ai.usage.cache_write.input_tokens",
    client_duration="gen_ai.client.inference.duration",
    client_first_chunk="gen_ai.client.inference.time_to_first_chunk",
    client_chunk_gap="gen_ai.client.inference.time_per_output_chunk",
    token_usage=None,
    input_token_usage="gen_ai.client.inference.operation.input_tokens",  # noqa: S106
    output_token_usage="gen_ai.client.inference.operation.output_tokens",  # noqa: S106
    top_k_is_int=True,
)
VOCABULARIES: Final = {each.name: each for each in (V1_41, GENAI_MAIN)}

# --- otel_llm: service-level objectives ---------------------------------------------------
SLO_MISSED: Final = "otel_llm.slo.missed"
SLO_REQUESTS: Final = "otel_llm.slo.requests"
SLO_THRESHOLD: Final = "otel_llm.slo.threshold"
SLO_OBJECTIVE: Final = "objective"
SLO_RESULT: Final = "result"
REQUESTS: Final = "{request}"

# --- otel_llm: export ---------------------------------------------------------------------
EXPORT_LOST_SPANS: Final = "otel_llm.export.lost_spans"
LOST_REASON: Final = "reason"
SPANS: Final = "{span}"

# --- What a reply says of itself and of who answered --------------------------------------
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
SYSTEM_FINGERPRINT: Final = "openai.response.system_fingerprint"
ENGINE_NAME: Final = f"{ENGINE}.name"
GATEWAY: Final = "otel_llm.gateway"
GATEWAY_OVERHEAD_US: Final = "otel_llm.gateway.overhead_us"
MALFORMED_RECORDS: Final = "otel_llm.stream.malformed_records"
OUTPUT_CUT: Final = "otel_llm.output.cut"
OUTPUT_ECHOES: Final = "otel_llm.output.echoes_prompt"
REPORTED_INFERENCE_US: Final = reported_us("inference")
"""TGI's prefill and decode together, which it does not tell apart."""

# --- The network part of a client call (integers and a boolean) ---------------------------
NET_REUSED: Final = "otel_llm.net.connection_reused"
NET_DNS_US: Final = "otel_llm.net.dns_us"
NET_CONNECT_US: Final = "otel_llm.net.connect_us"
NET_TLS_US: Final = "otel_llm.net.tls_us"
NET_RTT_US: Final = "otel_llm.net.rtt_us"
NET_RTT_VAR_US: Final = "otel_llm.net.rtt_var_us"
NET_RETRANSMITS: Final = "otel_llm.net.retransmits"

# --- Sampling: what every kept span says of the trace's decision --------------------------
ADJUSTED_COUNT: Final = "otel_llm.sampling.adjusted_count"
"""For how many requests a kept one stands: 1 / probability that its trace was kept (double)."""

# --- Names that engines' own spans carry, beside the aliases above ------------------------
NATIVE_INFERENCE: Final = "gen_ai.latency.time_in_model_inference"
NATIVE_KV_TRANSFER: Final = "gen_ai.latency.kv_cache_transfer_time"
NATIVE_PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
NATIVE_COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
NATIVE_CACHED_TOKENS: Final = "gen_ai.usage.cached_tokens"
NATIVE_CHOICES: Final = "gen_ai.request.n"

# --- otel_llm: the machine around a request (integers) ------------------------------------
UPLOAD_US: Final = "otel_llm.preprocess.upload_us"
"""From arrival until the whole body of the request had come in."""
HOST_CPU_THROTTLED_US: Final = "otel_llm.host.cpu_throttled_us"
HOST_CPU_THROTTLED_PERIODS: Final = "otel_llm.host.cpu_throttled_periods"
HOST_RUN_QUEUE_US: Final = "otel_llm.host.run_queue_us"
HOST_LOOP_LAG_MAX_US: Final = "otel_llm.host.loop_lag_max_us"
HOST_MINOR_FAULTS: Final = "otel_llm.host.minor_faults"
HOST_MAJOR_FAULTS: Final = "otel_llm.host.major_faults"
HOST_NUMA_NODE: Final = "otel_llm.host.numa_node"


def gpu_in(phase: str, what: str) -> str:
    """Attribute for the GPUs in a phase, such as ``otel_llm.gpu.prefill.clock_mhz``."""
    return f"otel_llm.gpu.{phase}.{what}"


# --- Hardware metrics: the conventions' names, and ours where they have none ---------------
HW_ID: Final = "hw.id"
HW_TYPE: Final = "hw.type"
HW_NAME: Final = "hw.name"
HW_MODEL: Final = "hw.model"
HW_VENDOR: Final = "hw.vendor"
HW_GPU_TASK: Final = "hw.gpu.task"
NETWORK_IO_DIRECTION: Final = "network.io.direction"
HW_GPU_UTILIZATION: Final = "hw.gpu.utilization"
HW_GPU_MEMORY_USAGE: Final = "hw.gpu.memory.usage"
HW_GPU_MEMORY_LIMIT: Final = "hw.gpu.memory.limit"
HW_GPU_MEMORY_UTILIZATION: Final = "hw.gpu.memory.utilization"
HW_GPU_IO: Final = "hw.gpu.io"
GPU_CLOCK: Final = "otel_llm.gpu.clock"
GPU_THROTTLED: Final = "otel_llm.gpu.throttled"
GPU_DOMAIN: Final = "otel_llm.gpu.clock.domain"
GPU_LINK: Final = "otel_llm.gpu.link"
GPU_REASON: Final = "otel_llm.gpu.throttle.reason"
RATIO: Final = "1"
BYTES: Final = "By"
HERTZ: Final = "Hz"
