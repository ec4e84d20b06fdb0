"""Who a request belongs to: allow-listed headers and baggage keys as attributes of its span.

`OTEL_LLM_CONTEXT_KEYS` is a comma-separated list of `name[=source:key][:hash]`, for example
`tenant=header:x-tenant-id, plan, user=baggage:user.id:hash`. A bare name is a baggage key.
`tenant` becomes `otel_llm.tenant`, any other name `otel_llm.context.<name>`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry import baggage
from opentelemetry.context import Context

from otel_llm import semconv
from otel_llm.errors import ConfigurationError

LONGEST = 256
_NAME = re.compile(r"[a-z][a-z0-9_.]{0,63}")


@dataclass(frozen=True, slots=True)
class IdentityKey:
    """One allow-listed key: where it is read, how its attribute is called, hashed or not."""

    name: str
    source: str
    key: str
    hashed: bool = False

    @property
    def attribute(self) -> str:
        """The span attribute that holds the value."""
        return semconv.TENANT if self.name == "tenant" else semconv.context_key(self.name)


def parse_keys(text: str) -> tuple[IdentityKey, ...]:
    """The keys of `OTEL_LLM_CONTEXT_KEYS`; raises `ConfigurationError` naming the bad entry."""
    return tuple(_parse(entry.strip()) for entry in text.split(",") if entry.strip())


def identity(
    keys: tuple[IdentityKey, ...], headers: Mapping[str, str], context: Context
) -> dict[str, str]:
    """Attributes for those of *keys* that the request carries.

    Values are cut to 256 characters; hashed ones are the first 16 hex digits of their SHA-256.
    """
    found = {}
    for each in keys:
        if each.source == "header":
            value: object = headers.get(each.key)
        else:
            value = baggage.get_baggage(each.key, context)
        if isinstance(value, str) and value:
            found[each.attribute] = _hashed(value) if each.hashed else value[:LONGEST]
    return found


def _parse(entry: str) -> IdentityKey:
    name, _, rest = entry.partition("=")
    hashed = entry.endswith(":hash")
    if hashed:
        name, rest = name.removesuffix(":hash"), rest.removesuffix(":hash")
    source, _, key = rest.partition(":") if rest else ("baggage", "", name)
    if not _NAME.fullmatch(name) or source not in {"header", "baggage"} or not key:
        raise ConfigurationError(
            f"OTEL_LLM_CONTEXT_KEYS: cannot read {entry!r}; "
            "expected name[=header:KEY|=baggage:KEY][:hash]"
        )
    return IdentityKey(name, source, key.lower() if source == "header" else key, hashed)


def _hashed(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()[:16]
