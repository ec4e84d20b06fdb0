"""Sending spans by OTLP so that no single span can stop the others. SDK glue."""

from otel_llm.export.safe import SafeSpanExporter

__all__ = ["SafeSpanExporter"]
