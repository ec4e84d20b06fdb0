"""A real Prometheus: it scrapes our metrics and exemplars, and its alerts burn as documented."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services import prometheus
from tests.services.process import Service, answers, free_port, poll
from tests.services.prometheus import Prometheus

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]
RULES = Path(__file__).parents[2] / "collector/prometheus/slo-rules.yml"
FAST, SLOWLY = "LLMObjectiveBurnsFast", "LLMObjectiveBurnsSlowly"
LABELS = {"job": "vllm", "otel_llm_side": "server", "objective": "ttft"}


def test_the_rules_can_be_read() -> None:
    """Promtool finds every rule of the file, and nothing to complain of."""
    assert f"SUCCESS: {RULES.read_text().count('expr:')} rules found" in prometheus.check_rules(
        RULES
    )


def requests(result: str, values: str) -> dict[str, str]:
    """The counter of an objective's requests, one value a minute."""
    labels = {**LABELS, "gen_ai_request_model": "tiny", "result": result}
    named = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return {"series": f"otel_llm_slo_requests_total{{{named}}}", "values": values}


def fires(alert: str, at: str, share: str) -> dict[str, Any]:
    """That *alert* fires then, with that share of requests in its text."""
    fast = alert == FAST
    ends = "spends its error budget within days" if fast else "will not last the month"
    annotations = {
        "summary": f"ttft of vllm {ends}",
        "description": f"{share} of requests miss ttft on side server of vllm.",
    }
    labels = {**LABELS, "severity": "page" if fast else "ticket"}
    expected = [{"exp_labels": labels, "exp_annotations": annotations}]
    return {"alertname": alert, "eval_time": at, "exp_alerts": expected}


def silent(alert: str, at: str) -> dict[str, Any]:
    """That *alert* does not fire then."""
    return {"alertname": alert, "eval_time": at, "exp_alerts": []}


HALF_A_DAY = "x720"
CASES = {
    "an hour in which a fifth is missed: above 14.4, by the shorter windows": (
        ("0+10x360 3608+8x60 4098+10x20", "0+0x360 2+2x60 122+0x20"),
        [silent(FAST, "6h"), fires(FAST, "7h", "20%"), silent(FAST, "7h8m")],
    ),
    "a fifth is missed from the start": (
        ("0+8" + HALF_A_DAY, "0+2" + HALF_A_DAY),
        [fires(FAST, "2h", "20%"), fires(SLOWLY, "3h", "20%")],
    ),
    "a tenth is missed: above 6, by the longer windows": (
        ("0+9" + HALF_A_DAY, "0+1" + HALF_A_DAY),
        [fires(FAST, "7h", "10%")],
    ),
    "5 % are missed: above 3": (
        ("0+95" + HALF_A_DAY, "0+5" + HALF_A_DAY),
        [silent(FAST, "7h"), fires(SLOWLY, "7h", "5%")],
    ),
    "2 % are missed: above 1": (
        ("0+98" + HALF_A_DAY, "0+2" + HALF_A_DAY),
        [silent(FAST, "7h"), fires(SLOWLY, "7h", "2%")],
    ),
    "half a percent is missed: within the budget": (
        ("0+199" + HALF_A_DAY, "0+1" + HALF_A_DAY),
        [silent(FAST, "7h"), silent(SLOWLY, "7h")],
    ),
    "an hour of misses, and all is well again": (
        ("0+8x60 490+10x460", "0+2x60 120+0x460"),
        [fires(FAST, "59m", "20%"), silent(FAST, "1h40m"), silent(SLOWLY, "7h40m")],
    ),
    "nobody asks": (("5x720", "5x720"), [silent(FAST, "7h"), silent(SLOWLY, "7h")]),
}


@pytest.mark.parametrize(("values", "expected"), CASES.values(), ids=CASES)
def test_burn_rates(
    tmp_path: Path, values: tuple[str, str], expected: list[dict[str, Any]]
) -> None:
    """Each pair of windows fires above its rate, and is silent below it."""
    met, missed = values
    case = {
        "interval": "1m",
        "input_series": [requests("met", met), requests("missed", missed)],
        "alert_rule_test": expected,
    }
    assert "SUCCESS" in prometheus.try_rules(tmp_path, RULES, [case])


APPLICATION = """
import sys, time
from opentelemetry import trace
import otel_llm

otel_llm.configure(prometheus=sys.argv[1], metrics=False, engines=[], slo={"e2e": "1ns"})
while True:
    with otel_llm.trace_request("chat", model="tiny", provider="demo", side="server") as request:
        request.mark(otel_llm.Mark.QUEUED)
        request.mark(otel_llm.Mark.SCHEDULED)
        list(request.stream(["a", "b"]))
        with request.active():
            context = trace.get_current_span().get_span_context()
    print("request", f"{context.trace_id:032x} {context.span_id:016x}", flush=True)
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """A process that answers requests and shows its metrics, and the address of these."""
    address = f"127.0.0.1:{free_port()}"
    log = tmp_path_factory.mktemp("application") / "application.log"
    command = [sys.executable, "-W", "error", "-c", APPLICATION, address]
    with Service(command, log=log, env={"OTEL_TRACES_EXPORTER": "none"}) as process:
        yield process.wait_ready(answers(f"http://{address}/metrics"), limit=30), address


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, application: tuple[Service, str]
) -> Iterator[Prometheus]:
    """Prometheus with the rules, which scrapes that process."""
    workdir = tmp_path_factory.mktemp("prometheus")
    with Prometheus.start(workdir, [application[1]], [RULES]) as running:
        yield running


def test_histograms_are_scraped(server: Prometheus) -> None:
    """The request's and the phases' histograms count, in buckets that a quantile can be had of."""
    for name, labels in (
        ("gen_ai_server_request_duration_seconds", 'gen_ai_request_model="tiny"'),
        ("otel_llm_phase_duration_seconds", 'phase="prefill"'),
    ):
        counted = f"{name}_count{{{labels}}} > 2"
        (count,) = poll(lambda counted=counted: server.query(counted), bool, limit=30)
        assert count["metric"]["job"] == "demo"
        (median,) = server.query(
            f"histogram_quantile(0.5, sum by (le) ({name}_bucket{{{labels}}}))"
        )
        assert 0 < float(median["value"][1]) < 1


def test_exemplars_lead_to_the_requests(
    server: Prometheus, application: tuple[Service, str]
) -> None:
    """They are kept with the trace and the span of a request that there was."""
    name = "gen_ai_server_request_duration_seconds_bucket"
    found = poll(lambda: server.exemplars(name), bool, limit=30)
    lines = (line.split() for line in application[0].log.read_text().splitlines())
    requests = {(words[1], words[2]) for words in lines if words[0] == "request"}
    for each in found:
        assert (each["labels"]["trace_id"], each["labels"]["span_id"]) in requests
        assert float(each["value"]) > 0


def test_an_objective_that_is_always_missed_alerts(server: Prometheus) -> None:
    """Our counter fits the rules as it is written: both alerts fire, for that objective."""
    wanted = {FAST, SLOWLY}
    found = poll(
        server.alerts,
        lambda alerts: {a["labels"]["alertname"] for a in alerts} == wanted,
        limit=120,
    )
    for each in found:
        assert each["state"] == "firing"
        labels = {k: v for k, v in each["labels"].items() if k in LABELS}
        assert labels == {"job": "demo", "otel_llm_side": "server", "objective": "e2e"}
        assert each["annotations"]["description"].startswith("100% of requests miss e2e")
