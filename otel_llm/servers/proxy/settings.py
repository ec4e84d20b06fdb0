"""What a proxy is told: where it listens, who answers, and how much it bears."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import urlsplit

from otel_llm.errors import ConfigurationError


class ProxyEngine(StrEnum):
    """What answers behind the proxy; `auto` recognises it by its replies."""

    AUTO = "auto"
    OLLAMA = "ollama"
    TGI = "tgi"
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMA_CPP = "llama_cpp"
    OPENAI = "openai"


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    @property
    def text(self) -> str:
        """As it is written in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Origin(NamedTuple):
    """The upstream: address, whether it speaks TLS, and a path in front of every request's."""

    address: Address
    tls: bool = False
    prefix: str = ""

    @property
    def authority(self) -> str:
        """What its `Host` header says: without the scheme's own port."""
        usual = 443 if self.tls else 80
        text = self.address.text
        return text.removesuffix(f":{usual}") if self.address.port == usual else text

    @property
    def url(self) -> str:
        """The whole of it."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds, in bytes, seconds and connections; None is without bound.

    `silence_s` is how long an upstream may say nothing, while it prefills too: none by default.
    """

    connections: int = 2_048
    header_bytes: int = 65_536
    inspected_bytes: int = 1024 * 1024
    connect_s: float = 5.0
    silence_s: float | None = None
    keep_alive_s: float = 60.0
    grace_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """One upstream and how its requests are treated.

    With `rewrite_host` the upstream is asked under its own name, else under the one that the client
    used. `forwarded` adds `X-Forwarded-For`, `-Proto` and `-Host`.
    """

    upstream: Origin
    engine: ProxyEngine = ProxyEngine.AUTO
    rewrite_host: bool = False
    forwarded: bool = False
    limits: Limits = field(default_factory=Limits)


def parse_origin(url: str) -> Origin:
    """The upstream of a URL; raises `ConfigurationError` if it is none."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        raise ConfigurationError(_no_origin()) from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(_no_origin())
    if parts.username or parts.query or parts.fragment:
        raise ConfigurationError(_no_origin())
    tls = parts.scheme == "https"
    address = Address(parts.hostname, port or (443 if tls else 80))
    return Origin(address, tls, parts.path.rstrip("/"))


def _no_origin() -> str:
    """Without the URL itself, which may hold a password."""
    return "--upstream must be http[s]://HOST[:PORT][/PATH], without credentials and query"


def parse_address(text: str, option: str) -> Address:
    """`HOST:PORT`, `[HOST]:PORT` or `:PORT` (all interfaces); raises `ConfigurationError`."""
    host, colon, port = text.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 65_536
    if not colon or not is_port or (":" in bare and bare == host):
        raise ConfigurationError(f"{option} is {text!r}; it must be HOST:PORT")
    return Address(bare or "0.0.0.0", int(port))  # noqa: S104 - the user asked for it
