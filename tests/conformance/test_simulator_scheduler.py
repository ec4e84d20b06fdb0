"""The simulated engine schedules as vLLM's own scheduler does, step for step."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.benchmarks.report import ROOT
from tests.services import vllm

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]
SCRIPT = Path(__file__).with_name("simulator_scheduler.py")
SEEDS = 300 if os.environ.get("OTEL_LLM_TEST_PROFILE") == "nightly" else 60


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_every_step_is_the_one_of_vllm(policy: str) -> None:
    """Tokens of each request, in the batch's order; who runs, who waits, and the KV cache.

    Small engines that run out of slots, tokens and blocks, under random loads with aborts.
    """
    done = subprocess.run(
        [vllm.python(), "-P", SCRIPT, vllm.model(), policy, str(SEEDS)],
        env={
            **os.environ,
            **vllm.ENVIRONMENT,
            "PYTHONPATH": str(ROOT),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_PLUGINS": "",
        },
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["differences"] == {}
    happened = found["happened"]
    assert happened["steps"] > 20 * SEEDS
    assert min(happened[each] for each in ("preemptions", "prefix_hits", "abort", "length")) > 0
