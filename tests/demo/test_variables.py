"""What of the user's environment reaches the demo's processes."""

from __future__ import annotations

from otel_llm.demo.variables import clean, exporting, without_settings

USERS = {
    "PATH": "/bin",
    "OTEL_SDK_DISABLED": "true",
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://elsewhere",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20s3cret,x=1",
    "OTEL_LLM_DISABLED": "1",
    "OTEL_RESOURCE_ATTRIBUTES": "team=ours",
    "NO_PROXY": "intranet",
}


def test_the_users_telemetry_has_no_part_in_it() -> None:
    """Only what describes the process stays; this machine's ports are not asked for by a proxy."""
    found = without_settings(USERS)
    assert {each for each in found if each.startswith("OTEL_")} == {"OTEL_RESOURCE_ATTRIBUTES"}
    assert found["PATH"] == "/bin"
    assert found["NO_PROXY"] == "intranet,127.0.0.1,localhost"
    assert found["no_proxy"] == "127.0.0.1,localhost"


def test_a_socks_proxy_is_left_out() -> None:
    """HTTP clients refuse to start with one, though nothing of the demo would use it."""
    found = without_settings({"ALL_PROXY": "socks5://gate:1080", "HTTP_PROXY": "http://gate"})
    assert "ALL_PROXY" not in found
    assert found["HTTP_PROXY"] == "http://gate"


def test_headers_are_kept_for_the_endpoint_that_they_are_for() -> None:
    """They are taken out of the environment and given to `--otlp`."""
    environ = dict(USERS)
    assert clean(environ) == {"authorization": "Bearer s3cret", "x": "1"}
    assert environ == without_settings(USERS)


def test_a_plugin_exports_to_the_demo() -> None:
    """Its endpoint is the receiver, and nothing else is set."""
    assert exporting("http://127.0.0.1:1")["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://127.0.0.1:1"
