"""A real HTTP server on loopback, in the running event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve *app* with uvicorn; gives its base URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = uvicorn.Config(
            app, http="h11", ws="none", lifespan="off", log_level="critical", loop="asyncio"
        )
        server = uvicorn.Server(settings)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110 - it tells in no other way
            await asyncio.sleep(0.001)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task
