"""Allow-listed headers and baggage as attributes: parsing the list, and reading the values."""

from __future__ import annotations

import hashlib

import pytest
from opentelemetry import baggage
from opentelemetry.context import Context

from otel_llm.errors import ConfigurationError
from otel_llm.propagation.identity import IdentityKey, identity, parse_keys

MISTAKES = ["Tenant", "1a", "a b", "a=cookie:x", "a=header:", "a=header", "a=:x", "=header:x"]
MISTAKES += [":hash", " a = header:x ", "x" * 65]


def found(keys: str, headers: dict[str, str] | None = None, **entries: object) -> dict[str, str]:
    """The attributes of a request with these headers and this baggage."""
    context = Context()
    for name, value in entries.items():
        context = baggage.set_baggage(name, value, context)
    return identity(parse_keys(keys), headers or {}, context)


class TestParse:
    """`name[=source:key][:hash]`, separated by commas."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("tenant", IdentityKey("tenant", "baggage", "tenant")),
            ("tenant:hash", IdentityKey("tenant", "baggage", "tenant", hashed=True)),
            ("tenant=header:X-Tenant", IdentityKey("tenant", "header", "x-tenant")),
            ("user=baggage:User.Id:hash", IdentityKey("user", "baggage", "User.Id", hashed=True)),
            ("a.b_2=header:x:hash", IdentityKey("a.b_2", "header", "x", hashed=True)),
        ],
    )
    def test_one(self, text: str, expected: IdentityKey) -> None:
        """Header names have no case, baggage keys do."""
        assert (expected,) == parse_keys(text)

    @pytest.mark.parametrize("text", ["", " ", ",", " , "])
    def test_none(self, text: str) -> None:
        """An empty list is no mistake."""
        assert parse_keys(text) == ()

    def test_several(self) -> None:
        """In their order."""
        assert [each.name for each in parse_keys("a, b=header:x,")] == ["a", "b"]

    @pytest.mark.parametrize("text", MISTAKES)
    def test_mistakes(self, text: str) -> None:
        """The message names the variable and the entry."""
        with pytest.raises(ConfigurationError, match=r"OTEL_LLM_CONTEXT_KEYS.*expected name"):
            parse_keys(f"ok, {text}")


class TestIdentity:
    """Values of one request."""

    def test_names(self) -> None:
        """The tenant has a name of its own, the others share a prefix."""
        expected = {"otel_llm.tenant": "acme", "otel_llm.context.plan": "gold"}
        assert expected == found("tenant=header:x-t, plan", {"x-t": "acme"}, plan="gold")

    @pytest.mark.parametrize("value", ["", None, 7])
    def test_absent(self, value: object) -> None:
        """What is not there, or is no text, leaves no attribute."""
        assert found("tenant, other=header:x", {}, tenant=value) == {}

    def test_cut(self) -> None:
        """Values come from the network."""
        assert len(found("tenant", tenant="x" * 1000)["otel_llm.tenant"]) == 256

    def test_hashed(self) -> None:
        """The same value has the same hash, of its whole length; the value itself is gone."""
        value = "user@example.com" * 40
        expected = hashlib.sha256(value.encode()).hexdigest()[:16]
        assert {"otel_llm.context.user": expected} == found("user:hash", user=value)
