"""The command `otel-llm`: one function per command.

A new command is one function here with the decorator `command`. It returns its exit status:
0 fine, 1 found something or failed, 2 wrong usage. A `ConfigurationError` that it raises is wrong
usage, any other error of ours a failure; both end as one line on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from otel_llm._version import __version__
from otel_llm.errors import ConfigurationError, MissingDependencyError, OtelLLMError
from otel_llm.servers.proxy.settings import ProxyEngine

if TYPE_CHECKING:
    from otel_llm.doctor.finding import Finding

try:
    import typer
except ImportError:  # told by `main`
    typer = None  # type: ignore[assignment]

FINE, FAILED, USAGE = 0, 1, 2
_COMMANDS: list[Callable[..., int]] = []


class Format(StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


class DemoEngine(StrEnum):
    """What the demo asks."""

    SIMULATED = "simulated"
    VLLM = "vllm"
    OLLAMA = "ollama"


class Dialect(StrEnum):
    """What a simulated engine speaks."""

    VLLM = "vllm"
    TGI = "tgi"
    OLLAMA = "ollama"


def command(function: Callable[..., int]) -> Callable[..., int]:
    """Make *function* a command of its name; its docstring is the help text."""
    _COMMANDS.append(function)
    return function


@command
def doctor(
    python: Annotated[
        Path | None,
        typer.Option(help="Look at the packages of this interpreter.", metavar="PATH"),
    ] = None,
    vllm_args: Annotated[
        str | None, typer.Option(help="Arguments of `vllm serve`, quoted as one.", metavar="TEXT")
    ] = None,
    processes: Annotated[
        bool, typer.Option("--processes", help="Look for running vLLM servers of this user.")
    ] = False,
    endpoint: Annotated[
        str | None, typer.Option(help="OTLP base URL, instead of the variable's.", metavar="URL")
    ] = None,
    network: Annotated[
        bool, typer.Option(help="Send an empty export to the OTLP receiver.")
    ] = True,
    output: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.TEXT,
) -> int:
    """Check what is installed and configured, and what telemetry will be missing, and why.

    Exit status 1 if there is a warning or an error.
    """
    from otel_llm.doctor import examine
    from otel_llm.doctor.environment import gather
    from otel_llm.doctor.finding import as_json, failed

    findings = examine(
        gather(
            python=python,
            vllm_args=vllm_args,
            processes=processes,
            endpoint=endpoint,
            network=network,
        )
    )
    if output is Format.JSON:
        sys.stdout.write(as_json(findings) + "\n")
    else:
        _print_findings(findings)
    return FAILED if failed(findings) else FINE


def _print_findings(findings: list[Finding]) -> None:
    """Coloured and wrapped on a terminal; elsewhere one line each, as it is."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from otel_llm.doctor.finding import as_lines

    console = Console(highlight=False)
    unicode = console.encoding.lower().startswith("utf")
    for line in as_lines(findings, unicode=unicode):
        if console.is_terminal:
            console.print(Padding(Text(line.text, line.style), (0, 0, 0, line.indent)))
        else:
            sys.stdout.write(" " * line.indent + line.text + "\n")


@command
def demo(
    requests: Annotated[
        int | None, typer.Option(help="How many; by default as many as come in 20 s.", metavar="N")
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same load.", metavar="S")] = 0,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second.", metavar="PER_SECOND")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="No request comes later than that.", metavar="SECONDS")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(help="What goes wrong, perhaps NAME=STRENGTH; `list` tells.", metavar="NAME"),
    ] = None,
    engine: Annotated[
        DemoEngine, typer.Option(help="What is asked: simulated, or a real one.")
    ] = DemoEngine.SIMULATED,
    dialect: Annotated[
        Dialect, typer.Option(help="What the simulated engine speaks.")
    ] = Dialect.VLLM,
    python: Annotated[
        Path | None,
        typer.Option(help="The interpreter that has vLLM; this one.", metavar="PATH"),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Where Ollama runs; here.", metavar="URL")] = None,
    model: Annotated[
        str | None, typer.Option(help="Ollama's model; its first.", metavar="NAME")
    ] = None,
    otlp: Annotated[
        str | None, typer.Option(help="Send everything on to this receiver, too.", metavar="URL")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.TEXT,
) -> int:
    """Run an engine under load, traced on both sides, and show where its time went.

    The engine is simulated: no GPU and no model is needed. It takes half a minute.
    """
    from otel_llm.demo.command import main
    from otel_llm.demo.plan import Plan
    from otel_llm.demo.run import Options

    plan = Plan(engine, dialect, requests, seed, rate, duration, tuple(fault or ()))
    return main(plan, Options(otlp, python, url, model), as_json=output is Format.JSON)


@command
def proxy(
    upstream: Annotated[
        str, typer.Option(help="Where the engine answers: http[s]://HOST[:PORT].", metavar="URL")
    ],
    listen: Annotated[
        str, typer.Option(help="Where clients ask; port 0 takes a free one.", metavar="HOST:PORT")
    ] = "127.0.0.1:8080",
    engine: Annotated[
        ProxyEngine, typer.Option(help="What answers; `auto` recognises it by its replies.")
    ] = ProxyEngine.AUTO,
    admin: Annotated[
        str | None,
        typer.Option(
            help="Where /healthz and /metrics are, or `off`; 127.0.0.1:9464 if that is free.",
            metavar="HOST:PORT",
        ),
    ] = None,
    rewrite_host: Annotated[
        bool, typer.Option("--rewrite-host", help="Ask the upstream under its own name.")
    ] = False,
    forwarded: Annotated[
        bool, typer.Option("--forwarded", help="Add X-Forwarded-For, -Proto and -Host.")
    ] = False,
    max_connections: Annotated[
        int, typer.Option(help="Of clients, at a time; more are answered 503.", min=1)
    ] = 2_048,
    connect_timeout: Annotated[
        float, typer.Option(help="To reach the upstream.", metavar="SECONDS", min=0.001)
    ] = 5.0,
    silence_timeout: Annotated[
        float | None,
        typer.Option(help="Give up an upstream that says nothing.", metavar="SECONDS", min=0.001),
    ] = None,
    idle_timeout: Annotated[
        float, typer.Option(help="Close idle clients' connections.", metavar="SECONDS", min=0.001)
    ] = 60.0,
    grace: Annotated[
        float, typer.Option(help="For open answers, at SIGTERM.", metavar="SECONDS", min=0)
    ] = 30.0,
) -> int:
    """Trace an engine that cannot be imported: a proxy in front of it that changes nothing.

    Telemetry goes where the `OTEL_*` variables say.
    """
    from otel_llm import config, setup
    from otel_llm.servers.proxy.app import ProxyApp
    from otel_llm.servers.proxy.serve import listening, listening_admin, run
    from otel_llm.servers.proxy.settings import Limits, ProxySettings, parse_address, parse_origin

    limits = Limits(
        connections=max_connections,
        connect_s=connect_timeout,
        silence_s=silence_timeout,
        keep_alive_s=idle_timeout,
        grace_s=grace,
    )
    settings = ProxySettings(parse_origin(upstream), engine, rewrite_host, forwarded, limits)
    listener = listening(parse_address(listen, "--listen"), "--listen")
    pages = listening_admin(admin)
    setup.configure(service_name="otel-llm-proxy", prometheus=pages is not None or None, engines=[])
    try:
        app = ProxyApp(settings, lambda: config.RUNTIME.telemetry, config.RUNTIME.server)
        run(app, listener, pages)
    finally:
        config.uninstrument()
    return FINE


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"otel-llm {__version__}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """OpenTelemetry for LLM inference: where did the p99 go?"""


def _app() -> Any:
    app = typer.Typer(
        name="otel-llm",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for function in _COMMANDS:
        app.command()(_exiting(function))
    return app


def _exiting(function: Callable[..., int]) -> Callable[..., None]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        raise typer.Exit(function(*args, **kwargs))

    return run


def main() -> None:
    """The console script; exits with the command's status."""
    missing = next((name for name in ("typer", "rich") if find_spec(name) is None), None)
    if missing is not None:
        sys.exit(_told(MissingDependencyError(missing, extra="cli"), USAGE))
    try:
        _app()()
    except ConfigurationError as error:
        sys.exit(_told(error, USAGE))
    except OtelLLMError as error:
        sys.exit(_told(error, FAILED))


def _told(error: Exception, status: int) -> int:
    sys.stderr.write(f"otel-llm: {error}\n")
    return status


if __name__ == "__main__":
    main()
