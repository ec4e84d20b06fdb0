"""What the checks look at, gathered once from this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from otel_llm.doctor.commandline import VllmCommand, from_text, running
from otel_llm.doctor.network import ENDPOINT, Probe, probe, targets
from otel_llm.doctor.sources import Hook, VllmSource
from otel_llm.errors import ConfigurationError

_STACK = Hook("FastAPI.build_middleware_stack", ("applications.py",), "")
_SCRIPT = """
import importlib.util, json, sys
sys.path = [each for each in sys.path if each]
def place(name):
    spec = importlib.util.find_spec(name)
    return list(spec.submodule_search_locations or ()) if spec else []
print(json.dumps([list(sys.version_info[:3]), sys.path, place("vllm"), place("fastapi")]))
"""
SLOWEST_START_S = 30


@dataclass(frozen=True, slots=True)
class Environment:
    """The evidence. Names of distributions are normalised: lower case, `-` between words.

    `variables` may hold secrets and is not shown. `fastapi` has `build_middleware_stack` if its
    class defines that, and `tracing` if it makes spans itself. `vllm` is None without vLLM.
    """

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    python: tuple[int, ...] = (3, 11, 0)
    distributions: Mapping[str, str] = field(default_factory=dict)
    entry_points: frozenset[tuple[str, str]] = frozenset()
    vllm: VllmSource | None = None
    fastapi: frozenset[str] = frozenset()
    commands: tuple[VllmCommand, ...] = ()
    processes_searched: bool = False
    probes: tuple[Probe, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """An interpreter: its version, its search path, and where two packages lie."""

    python: tuple[int, ...]
    path: Sequence[str]
    vllm: Path | None
    fastapi: Path | None


def gather(
    *,
    variables: Mapping[str, str] | None = None,
    python: Path | None = None,
    vllm_args: str | None = None,
    processes: bool = False,
    endpoint: str | None = None,
    network: bool = True,
) -> Environment:
    """Look at this machine.

    Args:
        variables: Environment variables; this process's own by default.
        python: Another interpreter, whose packages are looked at; this one by default.
        vllm_args: Arguments of `vllm serve`, as one text.
        processes: Also look for running vLLM servers of this user.
        endpoint: Stands for `OTEL_EXPORTER_OTLP_ENDPOINT`.
        network: Try to reach the OTLP receiver.

    Raises:
        ConfigurationError: *vllm_args* has unbalanced quotes, or *python* does not run.
    """
    env = dict(os.environ if variables is None else variables)
    if endpoint:
        env[ENDPOINT] = endpoint
    place = _here() if python is None else _elsewhere(python)
    given = () if vllm_args is None else (from_text(vllm_args),)
    found = list(metadata.distributions(path=list(place.path)))
    return Environment(
        variables=env,
        python=place.python,
        distributions={_normal(each): each.version for each in reversed(found)},
        entry_points=frozenset((e.group, e.name) for each in found for e in each.entry_points),
        vllm=VllmSource.read(place.vllm) if place.vllm else None,
        fastapi=_fastapi(place.fastapi) if place.fastapi else frozenset(),
        commands=(*given, *(running() if processes else ())),
        processes_searched=processes,
        probes=_probes(env) if network else (),
    )


def _normal(distribution: metadata.Distribution) -> str:
    """The name; broken installations have none."""
    name: str | None = distribution.metadata["Name"]
    return re.sub(r"[-_.]+", "-", name or "").lower()


def _here() -> Place:
    return _place(sys.version_info[:3], sys.path, _locations("vllm"), _locations("fastapi"))


def _locations(name: str) -> list[str]:
    spec = importlib.util.find_spec(name)
    return list(spec.submodule_search_locations or ()) if spec else []


def _elsewhere(python: Path) -> Place:
    """Ask another interpreter; it imports nothing but the standard library."""
    try:
        done = subprocess.run(  # noqa: S603 - the user named it
            [python, "-c", _SCRIPT],
            capture_output=True,
            check=True,
            text=True,
            timeout=SLOWEST_START_S,
        )
        return _place(*json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise ConfigurationError(
            f"--python {python} does not run ({type(error).__name__}); give the path of a Python "
            "interpreter, such as .venv/bin/python"
        ) from None


def _place(version: Any, path: Any, vllm: list[str], fastapi: list[str]) -> Place:
    return Place(tuple(version), path, _package(vllm), _package(fastapi))


def _package(locations: list[str]) -> Path | None:
    """The first folder that is a package; a folder that has the name by chance is none."""
    folders = (Path(each) for each in locations)
    return next((each for each in folders if (each / "__init__.py").is_file()), None)


def _fastapi(root: Path) -> frozenset[str]:
    facts = {"build_middleware_stack": _STACK.found(root), "tracing": (root / "telemetry").is_dir()}
    return frozenset(name for name, found in facts.items() if found)


def _probes(env: Mapping[str, str]) -> tuple[Probe, ...]:
    try:
        return probe(targets(env))
    except ConfigurationError:  # told by the checks
        return ()
