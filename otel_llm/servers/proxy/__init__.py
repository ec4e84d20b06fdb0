"""A tracing reverse proxy for engines that cannot be imported: bytes through, spans beside.

`ProxyApp` is the ASGI application, `serve` runs it with uvicorn. What goes through is not changed;
what is read of it for telemetry is a copy that is read after it was handed over, and bounded.
"""
