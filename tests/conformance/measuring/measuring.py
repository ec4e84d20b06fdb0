"""What vLLM's steps computed and took, and what became of its requests, as lines of JSON.

They go to the files `steps.jsonl` and `requests.jsonl` in the folder named by `MEASURING`. Instants
are seconds of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path
from typing import Any


def plugin() -> None:
    """Watch the scheduler, in the process that has it, and the end of requests in the other."""
    if "MEASURING" not in os.environ:
        return
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.output_processor import OutputProcessor

    _after(Scheduler, "add_request", _added)
    _after(Scheduler, "update_from_output", _stepped)
    _after(OutputProcessor, "_update_stats_from_finished", _finished)


def _after(owner: type, name: str, watch: Any) -> None:
    """Have *watch* called with the arguments of a method before it does its work."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def watched(*args: Any, **options: Any) -> Any:
        written = watch(*args, **options)
        try:
            return method(*args, **options)
        finally:
            written()

    setattr(owner, name, watched)


def _added(scheduler: Any, request: Any) -> Any:
    """A step that follows on idleness begins with the request that ended it."""
    if not scheduler.has_requests():
        scheduler.measured_from = time.monotonic()
    return lambda: None


def _stepped(scheduler: Any, planned: Any, output: Any) -> Any:
    """A step lasts from the end of the one before to its own."""
    step = {"prefill_tokens": 0, "prefill_context": 0, "decode_sequences": 0, "kv_tokens": 0}
    for name, tokens in planned.num_scheduled_tokens.items():
        request = scheduler.requests[name]
        end = request.num_computed_tokens  # counts those of this step already
        step["kv_tokens"] += end
        if request.num_output_tokens and tokens == 1:
            step["decode_sequences"] += 1
        else:
            step["prefill_tokens"] += tokens
            step["prefill_context"] += tokens * (end - tokens) + tokens * (tokens + 1) // 2
    began, ended = scheduler.measured_from, time.monotonic()
    scheduler.measured_from = ended
    row = {"ended": ended, "seconds": ended - began, **step}
    return lambda: _write("steps", row)


def _finished(processor: Any, state: Any, reason: Any, iteration: Any) -> Any:
    """What vLLM's histograms get of a request, with the instants they come from."""
    stats = state.stats

    def written() -> None:
        row = {
            "prompt_tokens": state.prompt_len,
            "output_tokens": stats.num_generation_tokens,
            "arrived": stats.arrival_time + time.monotonic() - time.time(),
            "queued": stats.queued_ts,
            "scheduled": stats.scheduled_ts,
            "first": stats.first_token_ts,
            "last": stats.last_token_ts,
            "ttft": stats.first_token_latency,
            "e2e": iteration.iteration_timestamp - stats.arrival_time,
        }
        _write("requests", row)

    return written


@functools.cache
def _file(name: str) -> Any:
    return Path(os.environ["MEASURING"], f"{name}.jsonl").open("a", buffering=1)


def _write(name: str, row: dict[str, Any]) -> None:
    _file(name).write(json.dumps(row) + "\n")
