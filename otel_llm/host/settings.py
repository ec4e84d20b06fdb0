"""What is looked at; one frozen value, made by `otel_llm.config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from otel_llm.errors import ConfigurationError
from otel_llm.variables import flag

HOST, GPU = "OTEL_LLM_HOST", "OTEL_LLM_GPU"


class Hosts(StrEnum):
    """On which sides the host is sampled: nowhere, all but clients, or everywhere."""

    OFF = "false"
    SERVERS = "true"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Switches: `host` for samples of the operating system, `gpu` for NVIDIA GPUs."""

    host: Hosts = Hosts.OFF
    gpu: bool = False

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> HostSettings:
        """Read `OTEL_LLM_HOST` and `OTEL_LLM_GPU`; raises `ConfigurationError`."""
        return cls(_hosts(env), flag(env, GPU, default=False))

    def given(self, host: bool | str | None, gpu: bool | None) -> HostSettings:
        """The same with every argument that was given in its place; raises likewise."""
        hosts = self.host if host is None else _hosts({HOST: str(host)})
        return replace(self, host=hosts, gpu=self.gpu if gpu is None else gpu)


def _hosts(env: Mapping[str, str]) -> Hosts:
    if env.get(HOST, "").strip().lower() == Hosts.ALL:
        return Hosts.ALL
    try:
        return Hosts.SERVERS if flag(env, HOST, default=False) else Hosts.OFF
    except ConfigurationError as wrong:
        raise ConfigurationError(f"{wrong}, or all") from None
