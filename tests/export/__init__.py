"""Encoding and sending of spans."""
