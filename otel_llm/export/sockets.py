"""Requests that end when they must: sockets that another thread can shut.

The timeout of `requests` holds for one read. A receiver that sends a byte now and then stretches
a request for ever, and nothing but its socket can end it.
"""

from __future__ import annotations

import socket
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from requests import Session


class Sockets:
    """The connections of one session."""

    def __init__(self, session: Session) -> None:
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        adapter = _adapter(self._open)
        for prefix in ("http://", "https://"):
            session.mount(prefix, adapter)

    def shut(self) -> None:
        """End what is being sent or received now; later requests connect anew."""
        for connection in list(self._open):
            plain = getattr(connection, "sock", None)
            if plain is not None:
                with suppress(OSError, TypeError, ValueError):
                    # Below TLS: an orderly end of TLS would wait for the receiver.
                    socket.socket.shutdown(plain, socket.SHUT_RDWR)


def _adapter(known: weakref.WeakSet[Any]) -> Any:
    """An adapter whose connections, through a proxy too, are in *known*."""
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, **kwargs)
            _know(self.poolmanager, known)

        def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
            manager = super().proxy_manager_for(*args, **kwargs)
            _know(manager, known)
            return manager

    return Adapter()


def _know(manager: Any, known: weakref.WeakSet[Any]) -> None:
    pools = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {
        scheme: pool if hasattr(pool, "known") else _pool(pool, known)
        for scheme, pool in pools.items()
    }


def _pool(pool: Any, known: weakref.WeakSet[Any]) -> Any:
    plain: Any = pool.ConnectionCls

    class Known(plain):  # type: ignore[misc]
        def connect(self) -> None:
            known.add(self)
            super().connect()

    return type(pool.__name__, (pool,), {"ConnectionCls": Known, "known": True})
