"""What a demo runs, and what it refuses to."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm.demo.plan import ENGINES, Plan
from otel_llm.errors import ConfigurationError
from otel_llm.simulator.faults import FAULTS


def test_a_plan_is_the_same_in_the_servers_process() -> None:
    """Everything of it survives the command line."""
    plan = Plan(dialect="tgi", requests=3, seed=7, rate=2.5, faults=("slow_reader=0.5",))
    assert plan == Plan.from_json(plan.to_json())
    assert plan.setup() == Plan.from_json(plan.to_json()).setup()


def test_the_same_seed_asks_the_same() -> None:
    """And another one something else."""
    assert Plan(seed=3).arrivals() == Plan(seed=3).arrivals()
    assert Plan(seed=3).arrivals() != Plan(seed=4).arrivals()


@pytest.mark.parametrize("engine", ENGINES)
def test_requests_come_in_about_twenty_seconds(engine: str) -> None:
    """So the whole takes half a minute."""
    assert 10 < Plan(engine=engine).arrivals()[-1].at_s < 30


def test_the_duration_bounds_the_load() -> None:
    """Also together with a number of requests: what comes first counts."""
    assert all(each.at_s <= 5 for each in Plan(duration_s=5).arrivals())
    assert len(Plan(duration_s=5).arrivals()) > 2
    assert len(Plan(duration_s=5, requests=2).arrivals()) == 2


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_changes_the_setup(name: str) -> None:
    """With dashes, too; and at strength 0 it changes nothing."""
    plain = Plan().setup()
    assert Plan(faults=(name,)).setup() != plain
    assert Plan(faults=(name.replace("_", "-"),)).setup() != plain
    assert Plan(faults=(f"{name}=0",)).setup() == plain


def test_faults_add_up() -> None:
    """Two of them are two."""
    setup = Plan(faults=("network_delay", "network_loss")).setup()
    assert len(setup.network.troubles) == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"requests": 0}, "--requests must be between 1 and"),
        ({"requests": 10_001}, "--requests must be between 1 and"),
        ({"rate": 0.0}, "--rate must be above 0"),
        ({"rate": float("nan")}, "--rate must be above 0"),
        ({"duration_s": 0.0}, "--duration must be above 0"),
        ({"duration_s": float("nan")}, "--duration must be above 0"),
        ({"faults": ("slow_reader=2",)}, "the strength must be between 0 and 1"),
        ({"faults": ("slow_reader=much",)}, "the strength must be between 0 and 1"),
        ({"faults": ("slow_reader=nan",)}, "the strength must be between 0 and 1"),
        ({"faults": ("gremlins",)}, r"'gremlins' is unknown; there are:(?s:.*)small_kv_cache  "),
        ({"engine": "vllm", "faults": ("small_kv_cache",)}, "only a simulated one"),
        ({"engine": "ollama", "faults": ("retries",)}, "only a simulated one"),
        ({"dialect": "tgi", "faults": ("retries",)}, "needs a client that tries again"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    """With what is accepted."""
    with pytest.raises(ConfigurationError, match=said):
        Plan(**wrong).setup()


def test_a_real_engine_can_have_faults_outside_of_it() -> None:
    """Its network and its readers are ours."""
    setup = Plan(engine="vllm", faults=("network_delay", "slow_reader", "long_prompts")).setup()
    assert setup.network.troubles
    assert max(each.prompt_tokens for each in setup.workload.arrivals(0, 80)) > 3000
