"""vLLM's command lines: those that were given, and those of running processes if asked for.

Only the options below are kept, so that API keys and headers are never even held.
"""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from otel_llm.doctor.finding import Finding, address, error, info, ok, warning
from otel_llm.errors import ConfigurationError

if TYPE_CHECKING:
    from otel_llm.doctor.environment import Environment

_KEPT = frozenset(
    {
        "api-server-count",
        "collect-detailed-traces",
        "config",
        "data-parallel-size",
        "disable-log-stats",
        "grpc",
        "middleware",
        "otlp-traces-endpoint",
    }
)
_SHORT = {"-asc": "--api-server-count", "-dp": "--data-parallel-size"}
_SERVICER = "smg-grpc-servicer"


@dataclass(frozen=True, slots=True)
class VllmCommand:
    """The options of one vLLM that matter here, each with its values; flags have none."""

    origin: str
    options: Mapping[str, tuple[str, ...]]

    def __contains__(self, option: object) -> bool:
        return option in self.options

    def number(self, option: str) -> int:
        """The option's number, 1 if it is absent or is none."""
        values = self.options.get(option, ())
        return int(values[-1]) if values and values[-1].isdecimal() else 1


def from_text(text: str) -> VllmCommand:
    """The command line of `--vllm-args`; raises `ConfigurationError` if quotes do not match."""
    try:
        words = shlex.split(text)
    except ValueError:
        raise ConfigurationError("--vllm-args has a quote without its other half") from None
    return VllmCommand("--vllm-args", _options(words))


def _options(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Options as vLLM reads them: `_` is `-` in names, values follow or stand behind `=`."""
    found: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for i, word in enumerate(words):
        name, equals, value = _SHORT.get(word, word).partition("=")
        name = name.removeprefix("--").replace("_", "-")
        if not word.startswith("-") or name not in _KEPT:
            continue
        if not equals and i + 1 < len(words) and not words[i + 1].startswith("-"):
            value = words[i + 1]
        found[name] += (value,) if value else ()
    return dict(found)


def running(proc: Path = Path("/proc")) -> tuple[VllmCommand, ...]:
    """Command lines of this user's vLLM servers; empty where there is no `/proc`."""
    found = []
    for path in sorted(proc.glob("[0-9]*/cmdline")):
        try:
            if path.stat().st_uid != os.getuid():
                continue
            words = path.read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if _is_server(words):
            found.append(VllmCommand(f"process {path.parent.name}", _options(words)))
    return tuple(found)


def _is_server(words: Sequence[str]) -> bool:
    if any(word.startswith("vllm.entrypoints.") for word in words[:6]):
        return True
    program = [PurePath(word).name for word in words[:3]]
    return "vllm" in program and "serve" in words[:4]


def check(environment: Environment) -> Iterator[Finding]:
    """What the command lines mean for telemetry."""
    if environment.processes_searched and not environment.commands:
        yield info(
            "command.none",
            "no vLLM server of this user is running here",
            "Servers in other containers or of other users are not visible.",
        )
    for command in environment.commands:
        findings = [
            *_statistics(command, environment),
            *_middleware(command),
            *_processes(command),
            *_others(command, environment),
        ]
        yield from findings or [ok("command.fine", f"{command.origin}: nothing to note")]


def _statistics(command: VllmCommand, environment: Environment) -> Iterator[Finding]:
    endpoint = "otlp-traces-endpoint" in command
    asserts = environment.vllm is None or environment.vllm.native_asserts
    if "disable-log-stats" in command and endpoint and asserts:
        yield error(
            "command.engine-dies",
            f"{command.origin}: --otlp-traces-endpoint together with --disable-log-stats",
            "vLLM's native tracing asserts that there are statistics: the engine dies on the "
            "first request that finishes.",
            "Remove one of them; otel_llm needs the statistics and not the endpoint.",
        )
    elif "disable-log-stats" in command:
        yield warning(
            "command.no-statistics",
            f"{command.origin}: --disable-log-stats",
            "vLLM then knows no times: queue and prefill are part of `unaccounted`.",
            "Remove it.",
        )
    if endpoint:
        place = address((command.options["otlp-traces-endpoint"] or ("",))[-1])
        yield info(
            "command.native-tracing",
            f"{command.origin}: vLLM's native tracing is on, to {place or 'an unknown address'}",
            "Its `llm_request` spans become children of our request spans. If they are exported "
            "elsewhere, traces show up in two places with a part missing in each.",
            "Leave it away, or send both to one place.",
        )


def _middleware(command: VllmCommand) -> Iterator[Finding]:
    for value in command.options.get("middleware", ()):
        name = value.rpartition(".")[2]
        if name[:1].islower():
            yield warning(
                "command.middleware-function",
                f"{command.origin}: --middleware {name} looks like a function",
                "vLLM runs functions through BaseHTTPMiddleware, which holds streamed chunks "
                "back and hides that a client has left.",
                "Write it as an ASGI class.",
            )


def _processes(command: VllmCommand) -> Iterator[Finding]:
    servers = max(command.number("api-server-count"), command.number("data-parallel-size"))
    if servers > 1:
        yield info(
            "command.api-servers",
            f"{command.origin}: several API server processes, up to {servers}",
            "Each exports on its own, and each sees the state of the replica at a part of the "
            "steps only. A call of configure() in code is not repeated in them.",
            "Configure by environment variables.",
        )


def _others(command: VllmCommand, environment: Environment) -> Iterator[Finding]:
    if "grpc" in command:
        servicer = environment.distributions.get(_SERVICER)
        yield info(
            "command.grpc",
            f"{command.origin}: --grpc ({_SERVICER} {servicer or 'not found'})",
            "Requests get spans of the engine's side: preprocess and delivery are missing, and "
            f"the caller's trace is joined from {_SERVICER} 0.13.6 on.",
        )
    if "collect-detailed-traces" in command:
        yield info(
            "command.detailed-traces",
            f"{command.origin}: --collect-detailed-traces",
            "It has done nothing since vLLM 0.11.",
            "Remove it.",
        )
    if "config" in command:
        yield info(
            "command.config-file",
            f"{command.origin}: --config",
            "Options in that file are not looked at.",
            "Give them with --vllm-args.",
        )
