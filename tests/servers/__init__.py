"""Server sides: ASGI."""
