"""Trace context and identity in headers."""
