"""Requests that stand still in vLLM's engine, so that what happens to them needs no clock.

A request with `"vllm_xargs": {"hold_after": 3}` runs, gets 3 tokens, and no more until it is
aborted. With `"hold_until": 2` as well it goes on once so many requests are held like this.
"""

from __future__ import annotations

import functools
import multiprocessing
from typing import Any


def plugin() -> None:
    """Hide held requests from the scheduler while it hands out the next step."""
    if not multiprocessing.current_process().name.startswith("EngineCore"):
        return
    from vllm.v1.core.sched.scheduler import Scheduler

    schedule = Scheduler.schedule

    @functools.wraps(schedule)
    def without_held(self: Any, *args: Any, **options: Any) -> Any:
        held = [each for each in self.running if _reached(each)]
        held = [each for each in held if not _released(each, len(held))]
        self.running = [each for each in self.running if each not in held]
        try:
            return schedule(self, *args, **options)
        finally:
            self.running += held

    Scheduler.schedule = without_held


def _asked(request: Any) -> dict[str, Any]:
    return getattr(request.sampling_params, "extra_args", None) or {}


def _reached(request: Any) -> bool:
    """Whether *request* has all the tokens that it may have for now."""
    return bool(request.num_output_tokens >= _asked(request).get("hold_after", float("inf")))


def _released(request: Any, held: int) -> bool:
    """Let *request* go on for good if so many are held as it waits for."""
    if held < _asked(request).get("hold_until", float("inf")):
        return False
    del _asked(request)["hold_after"]
    return True
