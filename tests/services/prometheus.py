"""Prometheus from Debian's package, unpacked without being installed."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.services import web
from tests.services.cache import cached
from tests.services.command import CommandError, run
from tests.services.process import Service, answers, free_port

VERSION = "2.42.0"
"""Debian 12's. Its own revisions of it are taken as they come."""


def binary(name: str = "prometheus") -> Path:
    """Return `prometheus` or `promtool`, and fetch the package when it is missing (seconds)."""
    return cached("prometheus", VERSION, _build) / "usr/bin" / name


def _build(target: Path) -> None:
    """Fetch the package as apt is set up to, which needs no root, and unpack it."""
    run(["apt-get", "download", "prometheus"], cwd=target)
    (package,) = target.glob("prometheus_*.deb")
    if not package.name.startswith(f"prometheus_{VERSION}"):
        raise CommandError(f"this machine's apt has {package.name}, and not {VERSION}")
    run(["dpkg-deb", "--extract", package, target])
    package.unlink()


def check_rules(rules: Path) -> str:
    """Let promtool read a file of rules; raises `CommandError` that says what is wrong with it."""
    return run([binary("promtool"), "check", "rules", rules])


def try_rules(workdir: Path, rules: Path, cases: Sequence[dict[str, Any]]) -> str:
    """Run promtool's unit tests of a file of rules; raises `CommandError` that says what failed."""
    # JSON is YAML, and needs no library to write.
    file = workdir / "rules-test.yml"
    file.write_text(json.dumps({"rule_files": [str(rules)], "tests": cases}, indent=1))
    return run([binary("promtool"), "test", "rules", file])


class Prometheus(Service):
    """A running Prometheus, which keeps exemplars."""

    url: str

    @classmethod
    def start(cls, workdir: Path, targets: Sequence[str], rules: Sequence[Path] = ()) -> Prometheus:
        """Start Prometheus on a free port; it scrapes each `host:port` every second."""
        config = workdir / "prometheus.yml"
        config.write_text(json.dumps(_config(targets, rules), indent=1))
        port = free_port()
        command = [
            binary(),
            f"--config.file={config}",
            f"--storage.tsdb.path={workdir / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--enable-feature=exemplar-storage",
        ]
        server = cls(command, log=workdir / "prometheus.log")
        server.url = f"http://127.0.0.1:{port}"
        return server.wait_ready(answers(f"{server.url}/-/ready"), limit=60.0)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return an instant vector: for each series `metric` (labels) and `value` (time, text)."""
        result: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return result

    def exemplars(self, expression: str) -> list[dict[str, Any]]:
        """Return the exemplars of the last hour: `labels`, `value` and `timestamp` of each."""
        now = time.time()
        found = self._get("query_exemplars", query=expression, start=now - 3600, end=now)
        return [exemplar for series in found for exemplar in series["exemplars"]]

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are pending or firing: `labels`, `annotations`, `state`."""
        found: list[dict[str, Any]] = self._get("alerts")["alerts"]
        return found

    def _get(self, what: str, **parameters: object) -> Any:
        """Return the data of an answer of the API, or fail with what it said."""
        answer = web.request(f"{self.url}/api/v1/{what}?{urlencode(parameters)}")
        if answer.status != 200:
            raise RuntimeError(f"Prometheus answered {answer.status}: {answer.body.decode()}")
        return answer.json()["data"]


def _config(targets: Sequence[str], rules: Sequence[Path]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {"job_name": "demo", "static_configs": [{"targets": list(targets)}]},
        ],
    }
