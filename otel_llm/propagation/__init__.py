"""Trace context and identity in and out of headers."""
