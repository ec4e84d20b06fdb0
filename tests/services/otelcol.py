"""A Collector of our own choice of components, built from the `otelcol` folder beside this file.

The load balancing exporter is left out: its AWS resolver needs
`aws-sdk-go-v2/service/servicediscovery`, which the module proxy does not serve.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.services import otlp_json
from tests.services.cache import cached
from tests.services.command import run
from tests.services.process import Service, free_ports, listening, poll

VERSION = "0.161.0"

Config = dict[str, Any]

_SOURCE = Path(__file__).with_name("otelcol")
_FILES = ("main.go", "go.mod", "go.sum")


def binary() -> Path:
    """Return the program, and build it first when it is missing (about two minutes)."""
    content = b"".join((_SOURCE / name).read_bytes() for name in _FILES)
    version = f"{VERSION}-{hashlib.sha256(content).hexdigest()[:8]}"
    return cached("otelcol", version, _build) / "otelcol"


def _build(target: Path) -> None:
    """Build from a copy, so that the source tree stays as it is."""
    source = target / "source"
    source.mkdir()
    for name in _FILES:
        shutil.copy(_SOURCE / name, source)
    run(["go", "build", "-o", target / "otelcol", "."], cwd=source)


def base_config(workdir: Path, processors: Config | None = None) -> Config:
    """Return a configuration with OTLP in, the processors in their order, and a file out."""
    grpc, http = free_ports(2)
    processors = processors or {}
    pipeline = {"receivers": ["otlp"], "processors": list(processors), "exporters": ["file"]}
    return {
        "receivers": {
            "otlp": {
                "protocols": {
                    "grpc": {"endpoint": f"127.0.0.1:{grpc}"},
                    "http": {"endpoint": f"127.0.0.1:{http}"},
                }
            }
        },
        "processors": processors,
        "exporters": {"file": {"path": str(workdir / "kept.jsonl"), "flush_interval": "100ms"}},
        "service": {
            "pipelines": {"traces": pipeline},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }


def validate(workdir: Path, config: Config, *, feature_gates: Sequence[str] = ()) -> str:
    """Return what the Collector says against a configuration, nothing when it accepts it.

    It does not look at everything: an unknown type of sampling policy fails at the start only.
    """
    command = _command("validate", _write(workdir, config), feature_gates)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr or done.stdout) if done.returncode else ""


class Collector(Service):
    """A running Collector, whose `otlp` receiver and `file` exporter tests use."""

    otlp_grpc: str
    otlp_http: str
    output: Path

    @classmethod
    def start(
        cls, workdir: Path, config: Config, *, feature_gates: Sequence[str] = ()
    ) -> Collector:
        """Start the Collector and wait until its OTLP receiver takes spans."""
        command = _command("", _write(workdir, config), feature_gates)
        collector = cls(command, log=workdir / "otelcol.log")
        protocols = config["receivers"]["otlp"]["protocols"]
        collector.otlp_grpc = f"http://{protocols['grpc']['endpoint']}"
        collector.otlp_http = f"http://{protocols['http']['endpoint']}"
        collector.output = Path(config["exporters"].get("file", {}).get("path", workdir / "none"))
        ports = [int(url.rpartition(":")[2]) for url in (collector.otlp_grpc, collector.otlp_http)]
        return collector.wait_ready(listening(*ports), limit=60.0)

    def kept(self) -> list[otlp_json.Span]:
        """Return the spans in the exporter's file; it is final once the Collector has stopped."""
        if not self.output.exists():
            return []
        # A last line without its end is still being written.
        whole = re.findall(r".*\n", self.output.read_text())
        return [span for line in whole for span in otlp_json.spans(json.loads(line))]

    def wait_kept(
        self,
        predicate: Callable[[list[otlp_json.Span]], bool] = bool,
        timeout: float = 10.0,
    ) -> list[otlp_json.Span]:
        """Return the spans in the exporter's file as soon as they satisfy the predicate."""
        return poll(self.kept, predicate, limit=timeout)


def _write(workdir: Path, config: Config) -> Path:
    """Write the configuration as JSON, which is YAML."""
    path = workdir / "otelcol.yaml"
    path.write_text(json.dumps(config, indent=1))
    return path


def _command(verb: str, config: Path, feature_gates: Sequence[str]) -> list[str]:
    """Return the command line of the program."""
    gates = [f"--feature-gates={','.join(feature_gates)}"] if feature_gates else []
    return [str(binary()), *filter(None, [verb]), "--config", str(config), *gates]
