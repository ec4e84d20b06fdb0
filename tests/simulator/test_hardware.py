"""What a step costs, and how that is fitted to measurements."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from otel_llm.simulator.hardware import (
    HARDWARE,
    MODELS,
    CostModel,
    Hardware,
    Sample,
    attended,
    num_blocks,
)

H100, LLAMA = HARDWARE["H100-SXM"], MODELS["Llama-3.1-8B"]
COST = CostModel.of(H100, LLAMA)


def samples(cost: CostModel, seed: int = 0, noise: float = 0.0) -> list[Sample]:
    """Steps measured on an engine that costs that much: prompts, batches, and both together."""
    rng = Random(seed)
    found = []
    for _ in range(60):
        prefill, cached = rng.choice((0, 0, rng.randrange(1, 2048))), rng.randrange(4096)
        decode = rng.randrange(1, 200)
        content = {
            "prefill_tokens": prefill,
            "prefill_context": attended(cached, prefill),
            "decode_sequences": decode,
            "kv_tokens": decode * rng.randrange(100, 4000) + (prefill and cached + prefill),
        }
        seconds = cost.step_seconds(**content) * rng.uniform(1 - noise, 1 + noise)
        found.append(Sample(seconds, **content))
    return found


@pytest.mark.parametrize("hardware", HARDWARE.values(), ids=lambda each: each.name)
def test_decoding_alone_costs_reading_the_weights(hardware: Hardware) -> None:
    """One sequence is bound by memory: bytes of the weights over what of the bandwidth one gets."""
    cost = CostModel.of(hardware, LLAMA)
    seconds = cost.step_seconds(decode_sequences=1, kv_tokens=100)
    floor = hardware.step_overhead_s + 2 * 8.03e9 / (0.8 * hardware.bandwidth)
    assert floor == pytest.approx(seconds, rel=0.01)


def test_a_small_batch_decodes_almost_for_free() -> None:
    """Thirty-two sequences read the same weights as one."""
    one = COST.step_seconds(decode_sequences=1, kv_tokens=500)
    many = COST.step_seconds(decode_sequences=32, kv_tokens=32 * 500)
    assert one < many < 1.25 * one


def test_a_long_prompt_costs_more_than_its_tokens() -> None:
    """Attention is quadratic: twice the prompt takes more than twice the time."""
    short, long = (
        COST.step_seconds(prefill_tokens=n, prefill_context=attended(0, n), kv_tokens=n)
        for n in (20_000, 40_000)
    )
    assert long > 2.2 * short


def test_more_hardware_is_faster() -> None:
    """Two of a kind take half the time, but for what does not depend on them."""
    two = CostModel.of(H100, LLAMA, count=2)
    assert COST.token_s / 2 == two.token_s
    assert COST.weights_s / 2 == two.weights_s
    assert COST.overhead_s == two.overhead_s


def test_the_size_of_the_cache_is_that_of_the_model_card() -> None:
    """Llama 3.1 8B keeps 128 KiB per token; on 80 GB that is 427,000 tokens beside the weights."""
    assert LLAMA.kv_bytes_per_token == 128 * 1024
    assert num_blocks(H100, LLAMA) == 26_674


def test_a_model_that_does_not_fit_is_refused() -> None:
    """The weights of a 70B model need more than one card, and the error says so."""
    with pytest.raises(ValueError, match="does not fit on 1 x H100-SXM"):
        num_blocks(H100, MODELS["Llama-3.1-70B"])
    assert num_blocks(H100, MODELS["Llama-3.1-70B"], count=4) > 0


def test_tokens_attend_to_all_before_them() -> None:
    """Three tokens after ten see 11, 12 and 13."""
    assert attended(10, 3) == 11 + 12 + 13


LAPTOP = CostModel(overhead_s=0.02, sequence_s=0.001, token_s=0.0004, pair_s=1e-7)


@pytest.mark.parametrize("cost", [COST, LAPTOP], ids=["roofline", "bound by compute"])
def test_a_fit_finds_the_cost_of_steps(cost: CostModel) -> None:
    """Steps it has not seen cost what they should, within 1 %, whatever bound them."""
    fitted = CostModel.fit(samples(cost))
    assert max(abs(error) for error in errors(fitted, samples(cost, seed=1))) < 0.01


def test_a_fit_stands_noise() -> None:
    """Measured to within 5 %, unseen steps are fitted to within 2 % on average."""
    missed = errors(CostModel.fit(samples(LAPTOP, noise=0.05)), samples(LAPTOP, seed=1))
    assert fmean(abs(error) for error in missed) < 0.02


def test_a_fit_costs_what_the_steps_took() -> None:
    """Steps that are now and then three times as long, as on a busy machine: the mean counts."""
    measured = [Sample(0.03 if n % 10 == 0 else 0.01, decode_sequences=1) for n in range(100)]
    fitted = CostModel.fit(measured)
    assert fitted.step_seconds(decode_sequences=1) == pytest.approx(0.012)


def test_a_fit_has_no_negative_coefficient() -> None:
    """Batches that seem to get cheaper with size do not make time run backwards."""
    measured = [Sample(0.4 - size / 10, decode_sequences=size) for size in (1, 2, 3)]
    fitted = CostModel.fit(measured)
    assert fitted.sequence_s == 0
    assert fitted.step_seconds(decode_sequences=100) > 0


def test_two_figures_of_requests_are_enough() -> None:
    """A first token and a time per output token fit the steps that they are."""
    fitted = CostModel.fit([Sample.of_prefill(0.5, 1000), Sample.of_decode(0.02, 4, 100)])
    prompt = fitted.step_seconds(
        prefill_tokens=1000, prefill_context=attended(0, 1000), kv_tokens=1000
    )
    assert pytest.approx((prompt, fitted.step_seconds(decode_sequences=4, kv_tokens=400))) == (
        0.5,
        0.02,
    )


def test_a_cached_prompt_is_a_shorter_one() -> None:
    """What the prefix cache gave is read and not computed."""
    assert Sample(0.1, 20, attended(80, 20), 0, 100) == Sample.of_prefill(0.1, 100, 80)


@pytest.mark.parametrize("wrong", [[], [Sample(0.0, 5)]], ids=["none", "no time"])
def test_nothing_to_fit_is_an_error(wrong: list[Sample]) -> None:
    """A fit needs steps that took time."""
    with pytest.raises(ValueError, match="samples"):
        CostModel.fit(wrong)


def errors(cost: CostModel, measured: list[Sample]) -> list[float]:
    """By how much of it each step is missed."""
    return [cost.seconds_of(each) / each.seconds - 1 for each in measured]
