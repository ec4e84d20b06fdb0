"""Server sides: ASGI middleware."""
