"""The tracing proxy."""
