"""The environment variables of the demo's processes: nothing of the user's own telemetry."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

_KEPT = frozenset({"OTEL_LLM_STRICT", "OTEL_RESOURCE_ATTRIBUTES"})
_LOOPBACK = "127.0.0.1,localhost"
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """*environ* without OpenTelemetry's settings, and with no proxy before this machine's ports."""
    found = {
        name: value
        for name, value in environ.items()
        if (not name.startswith("OTEL_") or name in _KEPT) and not _is_socks(name, value)
    }
    for name in ("NO_PROXY", "no_proxy"):
        found[name] = ",".join(each for each in (environ.get(name), _LOOPBACK) if each)
    return found


def _is_socks(name: str, value: str) -> bool:
    """HTTP clients refuse to start with such a proxy, even where they would not use it."""
    return name.lower().endswith("_proxy") and value.lower().startswith("socks")


def clean(environ: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Make this process's environment such, and return the headers that were for its OTLP endpoint.

    The endpoint is the demo's own now; `--otlp` takes the headers over.
    """
    from opentelemetry.util.re import parse_env_headers

    headers = dict(parse_env_headers(environ.get(HEADERS, ""), liberal=True))
    wanted = without_settings(environ)
    for name in set(environ) - set(wanted):
        del environ[name]
    environ.update(wanted)
    return headers


def exporting(endpoint: str) -> dict[str, str]:
    """The variables of a process that shall export to the demo's receiver, by its plugin."""
    return {
        **without_settings(os.environ),
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "500",
    }
