"""What `otel-llm demo` prints, and its exit status."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from otel_llm.analysis.words import times
from otel_llm.demo.plan import HARDWARE_NAME, OLLAMA, SIMULATED, Plan, listed
from otel_llm.demo.run import INTERRUPTED, Options, Result, run
from otel_llm.simulator.faults import FAULTS

if TYPE_CHECKING:
    from rich.console import Console

LIST = "list"


def main(plan: Plan, options: Options, *, as_json: bool) -> int:
    """Run the demo and print its report; returns 0, or 130 after Ctrl-C.

    Raises what `run` raises, and its `DemoError` once the report of what came is printed.
    """
    if LIST in plan.faults:
        sys.stdout.write(f"{listed()}\n")
        return 0
    result = run(plan, options)
    if as_json:
        from otel_llm.analysis import as_json as rendered

        sys.stdout.write(rendered(result.analysis) + "\n")
    elif result.analysis.all.requests:
        _print(result)
    for line in _remarks(result):
        sys.stderr.write(f"otel-llm: {line}\n")
    if result.error is not None:
        raise result.error
    return INTERRUPTED if result.interrupted else 0


def _print(result: Result) -> None:
    from rich.console import Console

    from otel_llm.analysis.render import render

    console = Console()
    for line in _heading(result.plan, result.target):
        _line(console, line)
    _line(console, "")
    render(result.analysis, console)
    _line(console, "")
    for line in _hints(result.plan):
        _line(console, line)


def _heading(plan: Plan, target: str) -> list[str]:
    setup = plan.setup()
    where = f" ({plan.model} on an {HARDWARE_NAME})" if plan.engine == SIMULATED else ""
    load = f"{times(setup.requests, 'request')} at {setup.workload.rate_per_s:g} per second"
    sides = "from the client" if plan.engine == OLLAMA else "from the client and the server"
    heading = f"{_sentence_case(target)}{where}: {load}, seen {sides}."
    return [heading] + [f"Fault {name}: {FAULTS[name].does}" for name, _ in plan.strengths()]


def _sentence_case(text: str) -> str:
    """The article is written large, a name as it is."""
    return f"T{text[1:]}" if text.startswith("the ") else text


def _line(console: Console, text: str) -> None:
    from rich.text import Text

    console.print(Text(text), highlight=False)


def _hints(plan: Plan) -> list[str]:
    """What to try next."""
    engine = "" if plan.engine == SIMULATED else f" --engine {plan.engine}"
    fault = "small_kv_cache" if plan.engine == SIMULATED else "network_delay"
    again = f"otel-llm demo{engine}"
    first = f"Compare: {again}" if plan.faults else f"Next: {again} --fault {fault}"
    return [first, "More faults: otel-llm demo --fault list"]


def _remarks(result: Result) -> list[str]:
    """What a reader of the figures has to know."""
    load, found = result.load, []
    if load is not None and load.unfinished:
        found.append(f"{times(load.unfinished, 'request')} cut off: the time was up")
    if result.missing:
        found.append(f"{times(result.missing, 'request')} not in the report: no spans of them came")
    if load is not None and load.late:
        found.append(
            f"{times(load.late, 'request')} sent late, by up to {load.latest_s * 1e3:.0f} ms: "
            "this machine was busy with something else; a lower --rate may help"
        )
    if result.forwarded is not None:
        found.append(result.forwarded)
    return found
