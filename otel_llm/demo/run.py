"""The demo from start to report: receiver, target, load, what came of it."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Protocol
from urllib.parse import urlsplit

import otel_llm
from otel_llm import semconv
from otel_llm.analysis import Analysis, SpanRecord, analyse, requests_of
from otel_llm.clock import SYSTEM_CLOCK
from otel_llm.demo import clients
from otel_llm.demo.child import DemoError
from otel_llm.demo.forward import Forward
from otel_llm.demo.ollama_target import DEFAULT_URL, OllamaTarget
from otel_llm.demo.otlp import span_records
from otel_llm.demo.plan import OLLAMA, SIMULATED, VLLM, Plan
from otel_llm.demo.progress import Progress
from otel_llm.demo.receiver import Receiver
from otel_llm.demo.simulated_target import SimulatedTarget
from otel_llm.demo.variables import clean
from otel_llm.demo.vllm_target import VllmTarget
from otel_llm.errors import ConfigurationError
from otel_llm.simulator.load import LoadReport, Send, drive
from otel_llm.simulator.network import Relay
from otel_llm.simulator.workload import Arrival
from otel_llm.timeline import Side

INTERRUPTED = 130
DRAIN_S = 35.0
"""How long after the last request came all have to be answered."""
COLLECT_S = 5.0
WATCH_S = 0.25
POLL_S = 0.05


class Target(Protocol):
    """An engine with its server."""

    name: str
    """What messages call it."""
    model: str
    """What is asked for, known once it was started."""

    def start(self) -> str:
        """Start or find it; returns its base URL. Raises an `OtelLLMError` that says what to do."""

    def check(self) -> None:
        """Raises `DemoError` if it has ended."""

    def stop(self) -> None:
        """End it and all that it has started."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is not part of the plan.

    Args:
        otlp: Where everything is sent on to.
        python: The interpreter that has vLLM.
        url: Where Ollama is.
        model: Which of Ollama's models is asked.
    """

    otlp: str | None = None
    python: Path | None = None
    url: str | None = None
    model: str | None = None


@dataclass(slots=True)
class Result:
    """What came of a demo."""

    plan: Plan
    target: str
    analysis: Analysis
    load: LoadReport | None = None
    """None if it was not seen to its end."""
    forwarded: str | None = None
    """How the sending on went."""
    error: DemoError | None = None
    """The target has died, or nothing could be measured."""
    interrupted: bool = False
    missing: int = 0
    """Requests that were sent and of which no span has come."""


@dataclass(slots=True)
class _Seen:
    """What has come so far."""

    started: int = 0
    records: list[SpanRecord] = field(default_factory=list)

    def complete(self, *, both: bool) -> bool:
        """Whether every request that was started has its client's span and, if *both*, more."""
        sides: dict[object, set[str]] = {Side.CLIENT: set(), Side.SERVER: set()}
        for each in self.records:
            side = each.attributes.get(semconv.SIDE)
            if side is not None:
                sides[Side.CLIENT if side == Side.CLIENT else Side.SERVER].add(each.trace_id)
        callers = sides[Side.CLIENT]
        return len(callers) >= self.started and (not both or callers <= sides[Side.SERVER])


def run(plan: Plan, options: Options) -> Result:
    """Run the demo; when this returns, everything that it has started has ended.

    Ctrl-C ends the load, and what came so far is analysed.

    Raises:
        ConfigurationError: An option is wrong.
        MissingDependencyError: A package is not installed.
        DemoError: The target could not be started.
        SystemExit: SIGTERM or SIGHUP has come; the status is 128 and the signal's number.
    """
    plan.setup()  # what is wrong is told before anything was started
    headers = clean()
    with ExitStack() as stack:
        stack.enter_context(_terminable())
        forward = None
        if options.otlp is not None:
            forward = Forward(options.otlp, headers)
            stack.callback(forward.close)
        receiver = stack.enter_context(Receiver(forward))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-llm-demo-")))
        target = _target(plan, options, folder, receiver.endpoint)
        stack.callback(target.stop)
        with Progress() as progress:
            demo = _Demo(plan, target, receiver, progress)
            result = demo.run()
    if forward is not None:
        result.forwarded = forward.told()
    return result


def _target(plan: Plan, options: Options, folder: Path, endpoint: str) -> Target:
    if plan.engine == VLLM:
        return VllmTarget(folder, endpoint, options.python)
    if plan.engine == OLLAMA:
        return OllamaTarget(options.url or DEFAULT_URL, options.model)
    return SimulatedTarget(plan, folder, endpoint)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM, and a terminal that is closed, unwind the stack, so that nothing is left behind."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    wanted = (signal.SIGTERM, signal.SIGHUP)
    heeded = [each for each in wanted if signal.getsignal(each) is not signal.SIG_IGN]  # nohup
    before = {each: signal.signal(each, leave) for each in heeded}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Demo:
    """One run against a target."""

    def __init__(self, plan: Plan, target: Target, receiver: Receiver, progress: Progress) -> None:
        self._plan = plan
        self._target = target
        self._receiver = receiver
        self._progress = progress
        self._seen = _Seen()

    def run(self) -> Result:
        """Start the target, drive the load, collect and analyse."""
        result = Result(self._plan, self._target.name, analyse(requests_of(())))
        for step in (self._load, self._collect):
            try:
                step(result)
            except KeyboardInterrupt:
                result.interrupted = True
        found = result.analysis = analyse(requests_of(self._seen.records))
        seen = found.all.requests + found.invalid + found.incomplete
        result.missing = max(0, self._seen.started - seen)
        if not (result.analysis.all.requests or result.error or result.interrupted):
            result.error = DemoError(f"nothing could be measured: {_why(result.load)}")
        return result

    def _load(self, result: Result) -> None:
        self._progress.step(f"Starting {self._target.name}")
        url = self._target.start()
        instrumented = clients.instrumented()
        otel_llm.configure(
            endpoint=self._receiver.endpoint, service_name="demo-client", engines=instrumented
        )
        try:
            result.load = asyncio.run(self._drive(url))
        except DemoError as error:
            result.error = error
        finally:
            otel_llm.uninstrument()  # sends what is still here

    async def _drive(self, url: str) -> LoadReport:
        setup = self._plan.setup()
        arrivals = self._arrivals()
        dialect = self._plan.dialect if self._plan.engine == SIMULATED else self._plan.engine
        self._progress.step(f"Asking {self._target.name}")
        async with AsyncExitStack() as stack:
            if setup.network.troubles:
                relay = Relay(setup.network, *_address(url), seed=setup.seed)
                await stack.enter_async_context(relay)
                relay.begin()
                url = f"http://127.0.0.1:{relay.port}"
            send = await stack.enter_async_context(clients.client(dialect, url, setup.client))
            limit_s = arrivals[-1].at_s + DRAIN_S
            task = asyncio.ensure_future(
                drive(
                    arrivals,
                    self._counted(send),
                    progress=self._progress.requests,
                    limit_s=limit_s,
                )
            )
            try:
                return await self._watched(task)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _arrivals(self) -> list[Arrival]:
        """The load, asking for the model that the target turned out to have."""
        return replace(self._plan, model=self._target.model).arrivals()

    def _counted(self, send: Send) -> Send:
        async def counted(arrival: Arrival) -> None:
            self._seen.started += 1
            await send(arrival)

        return counted

    async def _watched(self, task: asyncio.Future[LoadReport]) -> LoadReport:
        """What *task* returns; raises `DemoError` when the target dies first."""
        while not task.done():
            await asyncio.wait({task}, timeout=WATCH_S)
            self._target.check()
        return task.result()

    def _collect(self, _result: Result) -> None:
        """Take spans until every request is complete, for some seconds at most."""
        self._progress.step("Collecting")
        both = self._plan.engine != OLLAMA
        deadline_s = SYSTEM_CLOCK.monotonic() + COLLECT_S
        while True:
            self._seen.records += span_records(self._receiver.taken())
            if self._seen.complete(both=both) or SYSTEM_CLOCK.monotonic() > deadline_s:
                return
            Event().wait(POLL_S)


def _why(load: LoadReport | None) -> str:
    errors = sorted({each.error for each in load.sent if each.error} if load else ())
    return f"all requests failed ({', '.join(errors)})" if errors else "no spans arrived"


def _address(url: str) -> tuple[str, int]:
    """Host and port of the server that a network fault is put before."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigurationError("a --fault of the network needs a --url that begins with http://")
    return parts.hostname, parts.port or 80
