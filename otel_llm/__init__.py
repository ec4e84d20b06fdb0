"""OpenTelemetry instrumentation for LLM inference."""
