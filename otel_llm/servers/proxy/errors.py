"""What can go wrong between the proxy and its upstream."""

from __future__ import annotations


class UpstreamError(Exception):
    """The upstream did not answer as HTTP asks for.

    `kind` is a word for `error.type`; `status` what a client is told that has heard nothing yet.
    """

    def __init__(self, kind: str, status: int = 502) -> None:
        super().__init__(kind)
        self.kind = kind
        self.status = status


class StaleConnectionError(UpstreamError):
    """A connection that had been kept was closed by the upstream before it answered anything."""

    def __init__(self) -> None:
        super().__init__(CUT)


CONNECT_FAILED = "upstream_connect_failed"
CONNECT_TIMEOUT = "upstream_connect_timeout"
CUT = "upstream_cut"
GARBAGE = "upstream_protocol_error"
SILENT = "upstream_silent"
BAD_REQUEST = "bad_request"
LONG_HEAD = "request_head_too_long"
