"""From timelines to telemetry: the only code that creates spans and metrics for requests."""
