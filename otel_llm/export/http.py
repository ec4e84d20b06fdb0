"""Spans by OTLP over HTTP, from the bytes of `encode`: settings from the standard variables.

Understands what the official exporter understands: endpoint, headers, timeout, compression,
certificates, retries within the timeout, `Retry-After`. The timeout holds for a request as a
whole, however slowly the receiver trickles. Spans that are lost are counted, those of a partial
success too, and told of once when it begins and once when it is over (`losses`).
"""

from __future__ import annotations

import gzip
import logging
import random
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_llm._version import __version__
from otel_llm.clock import SYSTEM_CLOCK
from otel_llm.errors import ConfigurationError
from otel_llm.export import forks
from otel_llm.export.encode import Request, encoded
from otel_llm.export.limits import within
from otel_llm.export.losses import EXPORT_FAILED, REJECTED, Losses
from otel_llm.export.sockets import Sockets
from otel_llm.propagation.headers import header_fields

if TYPE_CHECKING:
    from requests import Response, Session

_log = logging.getLogger("otel_llm")
DEFAULT_URL = "http://localhost:4318/v1/traces"
DEFAULT_TIMEOUT_S = 10.0
FIRST_BACKOFF_S = 1.0
LONGEST_ANSWER = 65_536
_RETRIED = frozenset({408, 429, 502, 503, 504})
_COMPRESSIONS: dict[str, Callable[[bytes], bytes] | None] = {
    "none": None,
    "gzip": lambda body: gzip.compress(body, compresslevel=6),
    "deflate": zlib.compress,
}


class HttpSpanExporter(SpanExporter):
    """Exports spans to an OTLP/HTTP receiver; for use behind a batch processor.

    Args:
        url: Full address of the receiver, `http://localhost:4318/v1/traces` by default.
        environ: Where `OTEL_EXPORTER_OTLP_TRACES_*` and `OTEL_EXPORTER_OTLP_*` are read.

    Raises:
        ConfigurationError: A variable holds what it cannot.
    """

    def __init__(self, url: str | None, environ: Mapping[str, str]) -> None:
        import requests

        self.url = url or DEFAULT_URL
        self.losses = Losses()
        self._settings = _Variables(environ)
        self._timeout_s = self._settings.timeout_s()
        self._compress = self._settings.compression()
        self._errors = requests.RequestException
        self._closed = False
        self._remark = ""
        self.after_fork()
        forks.follow(self)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send *spans*; FAILURE if any request of them was given up."""
        result = SpanExportResult.SUCCESS
        self._given_up.clear()
        for request in encoded(spans):
            if failure := self._deliver(request):
                self.losses.add(EXPORT_FAILED, request.spans, f"{self._place()}: {failure}")
                result = SpanExportResult.FAILURE
        self.losses.settle(delivered=result is SpanExportResult.SUCCESS)
        return result

    def interrupt(self) -> None:
        """Give up what is being sent now; callable from another thread, never waits."""
        self._given_up.set()
        self._sockets.shut()

    def after_fork(self) -> None:
        """Begin with connections of one's own: those of the parent are the parent's."""
        self._session, self._sockets = _session(self._settings)
        self._given_up = threading.Event()
        self.losses.renew()

    def shutdown(self) -> None:
        """Give up what is being sent and close connections; what is exported later is refused."""
        self._closed = True
        self.interrupt()
        self._session.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002
        """Nothing is held back here."""
        return True

    def _deliver(self, request: Request) -> str:
        """Send a request, again while that may help and time is left; gives what is wrong."""
        body = request.body if self._compress is None else self._compress(request.body)
        deadline = _now_s() + self._timeout_s
        backoff_s = FIRST_BACKOFF_S
        failure = "the exporter was shut down"
        while not (self._closed or self._given_up.is_set()):
            answer, failure = self._post(body, deadline - _now_s())
            if answer is not None and answer.status_code < 300:
                self._hear(answer)
                return ""
            wait_s = backoff_s * random.uniform(0.8, 1.2)  # noqa: S311 - spreads retries
            if answer is not None:
                if answer.status_code not in _RETRIED:
                    break
                wait_s = _retry_after_s(answer) or wait_s
            if _now_s() + wait_s > deadline or self._given_up.wait(wait_s):
                break
            backoff_s *= 2
        return failure

    def _post(self, body: bytes, timeout_s: float) -> tuple[Response | None, str]:
        """The receiver's answer if there was one, and what is wrong with it."""
        timeout_s = max(timeout_s, 0.01)
        try:
            with within(timeout_s, self._sockets.shut):
                # Given here, for variables of `requests` beat the session's own. A redirect would
                # turn the POST into a GET, and take the headers along.
                answer = self._session.post(
                    self.url,
                    body,
                    timeout=timeout_s,
                    verify=self._session.verify,
                    cert=self._session.cert,
                    allow_redirects=False,
                )
        except self._errors as error:
            return None, type(error).__name__
        return answer, f"HTTP status {answer.status_code}"

    def _hear(self, answer: Response) -> None:
        """Take note of a partial success; most answers are empty."""
        spans, remark = _partial(answer)
        if spans > 0:
            self.losses.add(REJECTED, spans, f"{self._place()} rejects them: {remark}")
        elif remark and remark != self._remark:
            _log.warning("%s says: %s", self._place(), remark)
            self._remark = remark

    def _place(self) -> str:
        """The address without what may be secret in it."""
        address = self.url.split("?")[0]
        scheme, _, rest = address.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"


class _Variables:
    """The exporter's standard variables: those for traces, else those for all signals."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, name: str) -> str | None:
        for prefix in ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"):
            if value := self._environ.get(prefix + name, "").strip():
                return value
        return None

    def headers(self) -> dict[str, str]:
        return {
            "content-type": "application/x-protobuf",
            "user-agent": f"otel-llm-python/{__version__}",
            **({} if self.compression() is None else {"content-encoding": self._encoding()}),
            **(header_fields(self.text("HEADERS") or "") or {}),
        }

    def _encoding(self) -> str:
        return (self.text("COMPRESSION") or "none").lower()

    def compression(self) -> Callable[[bytes], bytes] | None:
        wanted = self._encoding()
        if wanted not in _COMPRESSIONS:
            raise ConfigurationError(
                f"OTEL_EXPORTER_OTLP_COMPRESSION is {wanted!r}; it must be one of "
                + ", ".join(_COMPRESSIONS)
            )
        return _COMPRESSIONS[wanted]

    def timeout_s(self) -> float:
        said = self.text("TIMEOUT")
        try:
            seconds = DEFAULT_TIMEOUT_S if said is None else float(said)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < threading.TIMEOUT_MAX:
            raise ConfigurationError(
                f"OTEL_EXPORTER_OTLP_TIMEOUT is {said!r}; it must be a number of seconds above 0"
            )
        return seconds


def _now_s() -> float:
    return SYSTEM_CLOCK.monotonic_ns() / 1e9


def _retry_after_s(answer: Response) -> float | None:
    said = answer.headers.get("retry-after", "")
    return float(said) if said.isascii() and said.isdigit() else None


def _session(settings: _Variables) -> tuple[Session, Sockets]:
    """A session as the variables want it, and the adapter that knows its sockets."""
    import requests

    session = requests.Session()
    session.verify = settings.text("CERTIFICATE") or True
    certificate, key = settings.text("CLIENT_CERTIFICATE"), settings.text("CLIENT_KEY")
    session.cert = (certificate, key) if certificate and key else certificate
    session.headers.update(settings.headers())
    return session, Sockets(session)


def _partial(answer: Response) -> tuple[int, str]:
    """How many spans the receiver rejected, and what it says."""
    if not answer.content or len(answer.content) > LONGEST_ANSWER:
        return 0, ""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    except DecodeError:
        return 0, ""
    return partial.rejected_spans, partial.error_message
