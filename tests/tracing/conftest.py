"""Fixtures of this folder."""

from tests.tracing.builders import in_force

__all__ = ["in_force"]
