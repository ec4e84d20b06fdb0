"""What vLLM keeps of its requests and of itself, from functions that it does not document.

They run in the process of the API server, and only while vLLM's own statistics are on:

- `OutputProcessor.add_request` makes the live statistics of each sequence, before it is queued.
  Pooling outputs carry none, and requests that end before their first output never show theirs.
- `IterationStats.update_from_events` is told of every preemption, with the engine's time.
- `StatLoggerManager.record` is given the scheduler's state after each step.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from otel_llm import semconv
from otel_llm.adapters.patching import Patches
from otel_llm.adapters.vllm.calls import CURRENT, PREEMPTED
from otel_llm.guard import guard

_LATEST = "_otel_llm_latest"
MOST_PREEMPTIONS = 64


def patch_requests(output_processor: Any, patches: Patches) -> None:
    """See every request that reaches the engine."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            added = original(self, request, *args, **kwargs)
            if patches.active:
                with guard("vllm.add_request"):
                    _added(self, request, *args, **kwargs)
            return added

        return add_request

    patches.replace(output_processor, "add_request", make)


def _added(
    processor: Any,
    request: Any,
    _prompt: Any = None,
    parent: Any = None,
    _index: int = 0,
    *_args: Any,
    **kwargs: Any,
) -> None:
    """Hand a sequence's statistics to the call it belongs to."""
    parent = kwargs.get("parent_req", parent)
    name = getattr(request, "external_req_id", None)
    if name is None:
        name = request.request_id if parent is None else parent.request_id
    taker = CURRENT.get()
    if taker is not None:
        known = processor.request_states.get(request.request_id)
        asked = request if parent is None else parent
        taker.take(name, getattr(known, "stats", None), asked, request)


def patch_events(iteration_stats: Any, patches: Patches) -> None:
    """Keep when a sequence was preempted and when it ran again, on its own statistics."""

    def make(original: Any) -> Any:
        parameters = list(inspect.signature(original).parameters)
        events_at, stats_at = (parameters.index(name) - 1 for name in ("events", "req_stats"))

        @functools.wraps(original)
        def update_from_events(self: Any, *args: Any, **kwargs: Any) -> Any:
            if patches.active:
                with guard("vllm.events"):
                    events = kwargs["events"] if "events" in kwargs else args[events_at]
                    _keep_preemptions(events, kwargs.get("req_stats") or args[stats_at])
            return original(self, *args, **kwargs)

        return update_from_events

    patches.replace(iteration_stats, "update_from_events", make)


def _keep_preemptions(events: Any, stats: Any) -> None:
    """Append (from, until) of each preemption; until is None while it lasts. Engine seconds."""
    found: list[tuple[float, float | None]] = getattr(stats, PREEMPTED, [])
    for event in events:
        if event.type.name == "PREEMPTED" and len(found) < MOST_PREEMPTIONS:
            found.append((event.timestamp, None))
            setattr(stats, PREEMPTED, found)
        elif event.type.name == "SCHEDULED" and found and found[-1][1] is None:
            found[-1] = found[-1][0], event.timestamp


def patch_loggers(loggers: Any, patches: Patches) -> None:
    """Keep the latest statistics of each engine, on vLLM's own manager of loggers."""
    manager = getattr(loggers, "StatLoggerManager", None)
    if manager is None:
        return

    def make(original: Any) -> Any:
        parameters = list(inspect.signature(original).parameters)[1:]

        @functools.wraps(original)
        def record(self: Any, *args: Any, **kwargs: Any) -> Any:
            if patches.active:
                with guard("vllm.record"):
                    given = dict(zip(parameters, args, strict=False)) | kwargs if args else kwargs
                    _keep_latest(self, given)
            return original(self, *args, **kwargs)

        return record

    patches.replace(manager, "record", make)


def _keep_latest(manager: Any, given: Mapping[str, Any]) -> None:
    scheduler = given.get("scheduler_stats")
    if scheduler is None:  # with several API servers each is told of some steps only
        return
    latest = vars(manager).setdefault(_LATEST, {})
    latest[given.get("engine_idx") or 0] = scheduler, given.get("iteration_stats")


def replica(engine: Any, rank: int | None, names: semconv.ReplicaNames) -> dict[str, object]:
    """The state of the engine as of its latest step; nothing if it is one of several, unknown.

    Requests that wait and run, the share of the KV cache in use, and the tokens of the step.
    """
    latest: dict[int, Any] = getattr(getattr(engine, "logger_manager", None), _LATEST, {})
    key = rank if rank is not None else next(iter(latest), None) if len(latest) == 1 else None
    if key not in latest:
        return {}
    scheduler, iteration = latest[key]
    usage = getattr(scheduler, "kv_cache_usage", None)
    skipped = getattr(scheduler, "num_skipped_waiting_reqs", 0)
    waiting = getattr(scheduler, "num_waiting_reqs", None)
    return {
        names.running: getattr(scheduler, "num_running_reqs", None),
        names.waiting: None if waiting is None else waiting + skipped,
        names.kv_cache_percent: None if usage is None else round(100 * usage),
        names.batch_tokens: _batch_tokens(iteration),
    }


def _batch_tokens(iteration: Any) -> int | None:
    """Tokens that the step computed: prompts' and generated ones."""
    generated = getattr(iteration, "num_generation_tokens", None)
    if generated is None:
        return None
    prompts = getattr(iteration, "prompt_token_stats", None)
    computed = getattr(prompts, "computed", None)
    if computed is None:
        computed = getattr(iteration, "num_prompt_tokens", 0)
    return int(generated + computed)
