"""A worker of gunicorn that runs uvicorn, as uvicorn's own, now a package of its own, does."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from gunicorn.workers.base import Worker as Base
from uvicorn import Config, Server


class Worker(Base):  # type: ignore[misc]
    """Serves ASGI on the sockets of the master."""

    def run(self) -> None:
        """Serve until told to stop."""
        config = Config(self.wsgi, log_level="warning", callback_notify=self._beat, lifespan="off")
        server = Server(config)
        self._server = server
        asyncio.run(server.serve(sockets=[each.sock for each in self.sockets]))
        sys.exit(0)

    def init_signals(self) -> None:
        """Uvicorn takes them."""

    async def _beat(self) -> None:
        self.notify()

    def handle_exit(self, *_signal: Any) -> None:
        """Stop serving."""
        self._server.should_exit = True
