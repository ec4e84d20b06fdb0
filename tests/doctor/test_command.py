"""The command itself, run as its users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_llm import __version__
from otel_llm.doctor.finding import Level, as_lines, error, info, ok, warning
from tests.doctor.builders import NEW, answering, planted
from tests.services import vllm

SECRETS = {
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=s3cret",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-token=s3cret",
    "OTEL_LLM_TYPO": "s3cret",
}


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `otel-llm` with *words*, in an environment without settings but *variables*."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-m", "otel_llm.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**clean, **variables},
    )


def report(done: subprocess.CompletedProcess[str]) -> dict[str, Level]:
    """The levels of a JSON report, by id."""
    assert done.stderr == ""
    return {each["id"]: Level(each["level"]) for each in json.loads(done.stdout)["findings"]}


def test_version() -> None:
    """One line."""
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"otel-llm {__version__}\n")


def test_nothing_is_in_the_way() -> None:
    """Exit status 0, and every signal accepted."""
    with answering(200) as url:
        done = run("doctor", "--endpoint", url)
    assert done.returncode == 0, done.stdout
    assert "Nothing is in the way" in done.stdout


def test_a_refusal_is_found() -> None:
    """Exit status 1, the reason, and the remedy below it."""
    with answering(401) as url:
        done = run("doctor", OTEL_EXPORTER_OTLP_ENDPOINT=url)
    assert done.returncode == 1
    assert "status 401" in done.stdout
    assert "    → Check OTEL_EXPORTER_OTLP_HEADERS" in done.stdout


def test_json() -> None:
    """The schema that scripts rely on."""
    done = run("doctor", "--format", "json", "--no-network", "--endpoint", "http://localhost:1")
    found = json.loads(done.stdout)
    assert set(found) == {"version", "findings", "summary"}
    assert found["version"] == 1
    assert all(set(e) == {"id", "level", "what", "why", "remedy"} for e in found["findings"])
    assert set(found["summary"]) == {"ok", "info", "warning", "error"}
    assert sum(found["summary"].values()) == len(found["findings"])
    assert done.returncode == 0


def test_without_network_nobody_is_asked() -> None:
    """The receiver sees nothing."""
    seen: list[object] = []
    with answering(200, seen) as url:
        run("doctor", "--no-network", "--endpoint", url)
    assert seen == []


@pytest.mark.parametrize("style", ["text", "json"])
def test_no_secret_is_printed(style: str) -> None:
    """Headers, passwords, queries, API keys and values of unknown variables."""
    with answering(500) as url:
        address = url.replace("//", "//me:s3cret@") + "?k=s3cret"
        done = run(
            "doctor",
            f"--format={style}",
            "--vllm-args",
            f"--api-key s3cret --otlp-traces-endpoint {address}",
            OTEL_EXPORTER_OTLP_ENDPOINT=address,
            **SECRETS,
        )
    assert done.returncode == 1
    assert "status 500" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr


def test_a_broken_header_is_not_printed() -> None:
    """Nor is anybody asked with it."""
    done = run("doctor", "--no-network", OTEL_EXPORTER_OTLP_HEADERS="authorization: s3cret")
    assert done.returncode == 1
    assert "OTEL_EXPORTER_OTLP_HEADERS" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr


def test_another_interpreter(tmp_path: Path) -> None:
    """Its vLLM is judged, and nothing of it runs."""
    done = run(
        "doctor",
        "--format=json",
        "--no-network",
        "--python",
        sys.executable,
        "--vllm-args=--disable-log-stats",
        PYTHONPATH=str(planted(tmp_path, NEW)),
    )
    found = report(done)
    assert found["install.vllm"] is found["vllm.phases"] is found["plugin.loaded"] is Level.OK
    assert found["command.no-statistics"] is Level.WARNING
    assert "vllm.hook-missing" not in found


@pytest.mark.parametrize(
    "words",
    [
        ["doctor", "--no-such-option"],
        ["no-such-command"],
        ["doctor", "--format", "xml"],
        ["doctor", "--python", "/nowhere"],
        ["doctor", "--vllm-args", "'"],
        [],
    ],
)
def test_wrong_usage(words: list[str]) -> None:
    """Exit status 2, and words about it instead of a traceback."""
    done = run(*words)
    assert done.returncode == 2
    assert done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_extra(package: str) -> None:
    """Exit status 2, and what to install."""
    script = f"import sys; sys.modules[{package!r}] = None; from otel_llm.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    expected = f"otel-llm: {package} is not installed; run: pip install 'otel-llm[cli]'\n"
    assert (done.returncode, done.stderr) == (2, expected)


def test_the_text_report() -> None:
    """Groups, symbols, indented remedies and a summary, in ASCII where nothing else is known."""
    findings = [
        ok("install.a", "A"),
        info("install.b", "B", "because"),
        warning("config.c", "C", "so", "do"),
        error("config.d", "D", "so", "do"),
    ]
    assert [" " * line.indent + line.text for line in as_lines(findings, unicode=False)] == [
        "Installed",
        "  + A",
        "  i B",
        "    because",
        "",
        "Configuration",
        "  ! C",
        "    so",
        "    -> do",
        "  x D",
        "    so",
        "    -> do",
        "",
        "1 error, 1 warning.",
    ]


@pytest.mark.services
@pytest.mark.timeout(1200)
def test_a_real_vllm() -> None:
    """Every hook is found in a real installation, which does not have otel_llm."""
    done = run("doctor", "--format=json", "--no-network", "--python", str(vllm.python()))
    found = report(done)
    assert found["install.vllm"] is found["vllm.hooks"] is found["vllm.phases"] is Level.OK
    assert found["install.otel-llm-missing"] is Level.ERROR
    assert not {"vllm.hook-missing", "vllm.middleware", "vllm.native-phases"} & set(found)
