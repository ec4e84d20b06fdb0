"""The version, read by the build and written into the instrumentation scope."""

__version__ = "0.1.0"
