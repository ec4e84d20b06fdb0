"""From requests to spans and metrics."""
