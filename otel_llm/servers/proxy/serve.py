"""Running the proxy: sockets, uvicorn below, signals, and the page for operators."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from otel_llm.errors import ConfigurationError, MissingDependencyError
from otel_llm.servers.proxy.admin import LONGEST_HEAD, Admin, Page
from otel_llm.servers.proxy.app import ProxyApp
from otel_llm.servers.proxy.settings import Address, parse_address
from otel_llm.servers.proxy.tunnel import Tunnel

if TYPE_CHECKING:
    import uvicorn

_log = logging.getLogger("otel_llm")
BACKLOG = 2_048
USUAL_ADMIN = Address("127.0.0.1", 9464)
_SPARE_FILES = 256


def listening(address: Address, option: str) -> socket.socket:
    """A socket that listens there; raises `ConfigurationError` that names *option*."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        made = socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        why = f"cannot listen on {address.text}: {error.strerror}"
        raise ConfigurationError(f"{option}: {why}") from None
    # What it accepts inherits this; asyncio sets it only on sockets that name their protocol. With
    # Nagle's algorithm a chunk would wait for the acknowledgement of the one before.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def listening_admin(text: str | None) -> socket.socket | None:
    """A socket for the operators' page: there, nowhere (`off`), or at the usual port if it is free.

    Raises:
        ConfigurationError: *text* is no address, or nothing can listen there.
    """
    if text == "off":
        return None
    if text is not None:
        return listening(parse_address(text, "--admin"), "--admin")
    try:
        return listening(USUAL_ADMIN, "--admin")
    except ConfigurationError:
        _log.warning("no /healthz and /metrics: %s is taken; see --admin", USUAL_ADMIN.text)
        return None


def run(
    app: ProxyApp,
    listener: socket.socket,
    admin: socket.socket | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, and let open answers finish for the grace time.

    Args:
        app: The proxy.
        listener: Where clients come, see `listening`.
        admin: Where `/healthz` and `/metrics` are asked, if anywhere.
        ready: Called with each line that tells operators where we listen, then `ready`.

    Raises:
        MissingDependencyError: uvicorn is not installed.
    """
    server = _server(app, listener, admin, ready or _say)
    _allow_files(2 * app.settings.limits.connections + _SPARE_FILES)
    with _Signals():
        server.run(sockets=[listener])


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def config_of(app: ProxyApp) -> uvicorn.Config:
    """Uvicorn as the proxy needs it: it adds nothing of its own to an answer, and logs nothing."""
    try:
        import uvicorn
    except ImportError:
        raise MissingDependencyError("uvicorn", extra="proxy") from None
    limits = app.settings.limits
    tunnel: Any = partial(_tunnel, app)
    return uvicorn.Config(
        app,
        http="h11",  # measured and tested; it also keeps the case of header names
        ws=tunnel,
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=limits.connections + 1,
        timeout_keep_alive=limits.keep_alive_s,  # type: ignore[arg-type]
        timeout_graceful_shutdown=limits.grace_s,  # type: ignore[arg-type]
        h11_max_incomplete_event_size=limits.header_bytes,
    )


def _tunnel(app: ProxyApp, *, server_state: Any, **_more: Any) -> Tunnel:
    return Tunnel(app, server_state)


def _server(
    app: ProxyApp,
    listener: socket.socket,
    admin: socket.socket | None,
    ready: Callable[[str], None],
) -> uvicorn.Server:
    config = config_of(app)
    import uvicorn

    class Server(uvicorn.Server):
        """With the page for operators beside, which stays while the last answers finish."""

        pages: asyncio.Server | None = None

        async def startup(self, *arguments: Any, **more: Any) -> None:
            await super().startup(*arguments, **more)
            if admin is not None:
                served = Admin(lambda: not self.should_exit, metrics_page())
                self.pages = await asyncio.start_server(
                    served.handle, sock=admin, limit=LONGEST_HEAD
                )
                ready(f"admin on http://{_text(admin)}")
            ready(f"listening on http://{_text(listener)}")
            ready("ready")

        async def shutdown(self, *arguments: Any, **more: Any) -> None:
            await super().shutdown(*arguments, **more)
            app.upstream.close()
            if self.pages is not None:
                self.pages.close()

    return Server(config)


def _text(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return Address(host, port).text


def metrics_page() -> Page | None:
    """The process's own Prometheus registry as a page, or None without prometheus-client."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return None
    from otel_llm.scrape import page

    return partial(page, REGISTRY)


class _Signals:
    """uvicorn raises a signal again once it is done; here that must not end the process.

    What is still to be exported is exported after it.
    """

    def __enter__(self) -> None:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGTERM, signal.SIGINT):
                self._before[each] = signal.signal(each, _nothing)

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)


def _nothing(_signal: int, _frame: object) -> None:
    """The server has seen it."""


def _allow_files(count: int) -> None:
    """Raise the soft limit of open files as far as needed and allowed."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
