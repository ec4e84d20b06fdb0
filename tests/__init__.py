"""Tests of otel_llm."""
