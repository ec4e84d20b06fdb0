"""Spans of engines' own tracing: recorded from real ones, or built after their sources."""
