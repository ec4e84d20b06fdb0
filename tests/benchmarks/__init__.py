"""What otel_llm costs: ratios against a bare run, against native tracing, and against by-hand."""
