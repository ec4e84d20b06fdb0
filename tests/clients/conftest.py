"""The fixtures, for the tests in this directory."""

from tests.clients.fixtures import aask_fixture, ask_fixture, captured_fixture, serve_fixture

__all__ = ["aask_fixture", "ask_fixture", "captured_fixture", "serve_fixture"]
