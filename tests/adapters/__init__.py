"""Patching libraries, and each engine."""
