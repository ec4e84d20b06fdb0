"""Calls of client libraries, against servers on loopback."""
