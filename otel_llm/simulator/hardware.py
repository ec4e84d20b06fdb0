"""What hardware and models can do, and what a step costs on them.

Figures are those of public data sheets and model cards. The model of cost is the roofline: a step
reads all weights and the KV cache of its sequences, computes on its tokens, and takes as long as
the slower of the two, plus what does not depend on either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import combinations
from operator import itemgetter, mul


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator or machine."""

    name: str
    flops: float
    """Dense 16-bit operations per second (32-bit on the CPU)."""
    bandwidth: float
    """Bytes per second of the memory the weights are in."""
    memory: float
    """Bytes of that memory."""
    step_overhead_s: float
    """Seconds per step for scheduling, launching and sampling; typical, not of a data sheet."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model with grouped-query attention."""

    name: str
    parameters: float
    active_parameters: float
    """Those that one token passes: fewer in a mixture of experts."""
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    max_model_len: int
    """Tokens of prompt and answer together."""
    bytes_per_value: float = 2.0
    """Of weights and KV cache."""

    @property
    def weight_bytes(self) -> float:
        """Memory of the weights."""
        return self.parameters * self.bytes_per_value

    @property
    def kv_bytes_per_token(self) -> float:
        """Memory of one token's keys and values."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.bytes_per_value


HARDWARE = {
    each.name: each
    for each in (
        Hardware("H100-SXM", 989e12, 3.35e12, 80e9, 0.002),
        Hardware("H200", 989e12, 4.8e12, 141e9, 0.002),
        Hardware("A100-80G", 312e12, 2.039e12, 80e9, 0.002),
        Hardware("L4", 121e12, 300e9, 24e9, 0.002),
        Hardware("RTX 4090", 165e12, 1008e9, 24e9, 0.002),
        Hardware("Apple M3 Max", 28e12, 400e9, 64e9, 0.004),
        Hardware("CPU laptop", 0.8e12, 80e9, 32e9, 0.008),
    )
}
MODELS = {
    each.name: each
    for each in (
        Model("Llama-3.1-8B", 8.03e9, 8.03e9, 32, 32, 8, 128, 131_072),
        Model("Llama-3.1-70B", 70.6e9, 70.6e9, 80, 64, 8, 128, 131_072),
        Model("Qwen2.5-7B", 7.62e9, 7.62e9, 28, 28, 4, 128, 32_768),
        Model("Mixtral-8x7B", 46.7e9, 12.9e9, 32, 32, 8, 128, 32_768),
        Model("SmolLM2-135M", 134.5e6, 134.5e6, 30, 9, 3, 64, 8192),
    )
}


def num_blocks(
    hardware: Hardware,
    model: Model,
    *,
    block_size: int = 16,
    utilisation: float = 0.9,
    count: int = 1,
) -> int:
    """KV-cache blocks that fit beside the weights on *count* of that hardware.

    Raises ValueError if not even the weights fit.
    """
    left = count * hardware.memory * utilisation - model.weight_bytes
    blocks = int(left // (block_size * model.kv_bytes_per_token))
    if blocks < 1:
        raise ValueError(f"{model.name} does not fit on {count} x {hardware.name}; give more")
    return blocks


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured step: what was in it, as `CostModel.step_seconds` takes it, and its seconds."""

    seconds: float
    prefill_tokens: int = 0
    prefill_context: int = 0
    decode_sequences: int = 0
    kv_tokens: int = 0

    @classmethod
    def of_prefill(cls, seconds: float, prompt_tokens: int, cached_tokens: int = 0) -> Sample:
        """A whole prompt, alone in one step: its time to first token without queue and network."""
        new = prompt_tokens - cached_tokens
        return cls(seconds, new, attended(cached_tokens, new), 0, prompt_tokens)

    @classmethod
    def of_decode(cls, seconds: float, sequences: int, context_tokens: int) -> Sample:
        """*sequences* decoding together, each of that mean length: the time per output token."""
        return cls(seconds, 0, 0, sequences, sequences * context_tokens)


def attended(before: int, tokens: int) -> int:
    """Pairs of one of *tokens* and a token it attends to, itself included, *before* them cached."""
    return tokens * before + tokens * (tokens + 1) // 2


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of one step, from six coefficients, each in seconds and none negative."""

    overhead_s: float = 0.0
    """Per step."""
    sequence_s: float = 0.0
    """Per decoding token and step, on the host: sampling, detokenising."""
    token_s: float = 0.0
    """Compute per token."""
    pair_s: float = 0.0
    """Compute per pair of prompt token and token attended to."""
    weights_s: float = 0.0
    """Reading all weights once."""
    kv_token_s: float = 0.0
    """Reading one token's keys and values."""

    @classmethod
    def of(
        cls,
        hardware: Hardware,
        model: Model,
        *,
        count: int = 1,
        compute_efficiency: float = 0.5,
        memory_efficiency: float = 0.8,
        sequence_s: float = 10e-6,
    ) -> CostModel:
        """The roofline of *model* on *count* of *hardware*, at the shares of it one really gets."""
        flops = count * hardware.flops * compute_efficiency
        bandwidth = count * hardware.bandwidth * memory_efficiency
        return cls(
            overhead_s=hardware.step_overhead_s,
            sequence_s=sequence_s,
            token_s=2 * model.active_parameters / flops,
            pair_s=4 * model.layers * model.heads * model.head_size / flops,
            weights_s=model.weight_bytes / bandwidth,
            kv_token_s=model.kv_bytes_per_token / bandwidth,
        )

    def step_seconds(
        self,
        *,
        prefill_tokens: int = 0,
        prefill_context: int = 0,
        decode_sequences: int = 0,
        kv_tokens: int = 0,
    ) -> float:
        """Seconds of a step.

        *prefill_context* counts pairs (`attended`), *decode_sequences* the tokens of decoding
        sequences with their drafts, *kv_tokens* the cached tokens read, of all sequences.
        """
        compute = self.token_s * (prefill_tokens + decode_sequences) + self.pair_s * prefill_context
        memory = self.weights_s + self.kv_token_s * kv_tokens
        host = self.overhead_s + self.sequence_s * decode_sequences
        return host + max(compute, memory)

    @classmethod
    def fit(cls, samples: Iterable[Sample]) -> CostModel:
        """The coefficients with the least squared relative error on measured steps.

        A step counts as bound by compute or by memory as the fit so far says, from three first
        guesses, until that settles. Of steps alike that differ in time the least relative error is
        below their mean, so in the end all grow until the samples together cost what they took.
        Raises ValueError without samples, or if one took no time.
        """
        known = list(samples)
        if not known or any(not each.seconds > 0 for each in known):
            raise ValueError("a fit needs samples, each with more than zero seconds")
        guesses = ([each.prefill_tokens > 0 for each in known], [True] * len(known))
        fits = [cls._settled(known, guess) for guess in (*guesses, [False] * len(known))]
        best = min(fits, key=itemgetter(0))[1]
        factor = sum(each.seconds for each in known) / sum(map(best.seconds_of, known))
        return cls(**{name: factor * value for name, value in asdict(best).items()})

    @classmethod
    def _settled(cls, samples: list[Sample], by_compute: list[bool]) -> tuple[float, CostModel]:
        best, least = cls(), math.inf
        for _ in range(20):
            rows = [_row(each, bound) for each, bound in zip(samples, by_compute, strict=True)]
            fitted = cls(*_non_negative_least_squares(rows))
            error = sum(fitted._error(each) ** 2 for each in samples)
            if error < least:
                best, least = fitted, error
            before, by_compute = by_compute, [fitted._by_compute(each) for each in samples]
            if by_compute == before:
                break
        return least, best

    def seconds_of(self, sample: Sample) -> float:
        """What a step with that in it costs by this model."""
        return self.step_seconds(
            prefill_tokens=sample.prefill_tokens,
            prefill_context=sample.prefill_context,
            decode_sequences=sample.decode_sequences,
            kv_tokens=sample.kv_tokens,
        )

    def _error(self, sample: Sample) -> float:
        return self.seconds_of(sample) / sample.seconds - 1

    def _by_compute(self, sample: Sample) -> bool:
        tokens = sample.prefill_tokens + sample.decode_sequences
        compute = self.token_s * tokens + self.pair_s * sample.prefill_context
        return compute > self.weights_s + self.kv_token_s * sample.kv_tokens


def _row(sample: Sample, by_compute: bool) -> list[float]:
    """What each coefficient is multiplied by, over the measured seconds: the row's aim is 1."""
    tokens = sample.prefill_tokens + sample.decode_sequences
    compute = [tokens, sample.prefill_context, 0, 0]
    memory = [0, 0, 1, sample.kv_tokens]
    row = [1, sample.decode_sequences, *(compute if by_compute else memory)]
    return [value / sample.seconds for value in row]


def _non_negative_least_squares(rows: list[list[float]]) -> list[float]:
    """The best non-negative solution of rows · x = 1: of every choice of columns, the best."""
    columns = list(zip(*rows, strict=True))
    scales = [max(column) or 1.0 for column in columns]
    columns = [
        tuple(value / scale for value in column)
        for column, scale in zip(columns, scales, strict=True)
    ]
    sums = [sum(column) for column in columns]
    products = [[sum(map(mul, one, other)) for other in columns] for one in columns]
    best, most = [0.0] * len(columns), 0.0
    for size in range(1, len(columns) + 1):
        for chosen in combinations(range(len(columns)), size):
            table = [[*(products[i][j] for j in chosen), sums[i]] for i in chosen]
            found = _solved(table, 1e-10 * len(rows))
            if found is None or min(found) < 0:
                continue
            explained = sum(sums[i] * x for i, x in zip(chosen, found, strict=True))
            if explained > most + 1e-12 * len(rows):  # the squared error is what this leaves
                best, most = [0.0] * len(columns), explained
                for i, value in zip(chosen, found, strict=True):
                    best[i] = value / scales[i]
    return best


def _solved(table: list[list[float]], least: float) -> list[float] | None:
    """Solves linear equations, their aims in the last column; None if no pivot is *least*."""
    width = len(table)
    for i in range(width):
        pivot = max(range(i, width), key=lambda k: abs(table[k][i]))
        if abs(table[pivot][i]) < least:
            return None
        table[i], table[pivot] = table[pivot], table[i]
        for k in range(width):
            if k != i:
                share = table[k][i] / table[i][i]
                table[k] = [x - share * y for x, y in zip(table[k], table[i], strict=True)]
    return [table[i][width] / table[i][i] for i in range(width)]
