"""Reading environment variables: each wrong value is told with the variable's name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from otel_llm.errors import ConfigurationError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def flag(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    """True or false in any of the usual words; *default* where nothing is set."""
    text = env.get(name, "")
    value = text.strip().lower()
    if not value:
        return default
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ConfigurationError(f"{name} is {text!r}; it must be true or false")


def switch_or_text(env: Mapping[str, str], name: str) -> bool | str:
    """True or false, or else a text such as an address."""
    text = env.get(name, "").strip()
    if text.isdigit():
        return text  # a port, also port 1
    return flag(env, name, default=False) if text.lower() in {"", *_TRUE, *_FALSE} else text


def number(env: Mapping[str, str], name: str, *, default: int) -> int:
    """A whole number above 0; *default* where nothing is set."""
    text = env.get(name, "").strip()
    if not text:
        return default
    if not (len(text) < 10 and text.isascii() and text.isdigit() and 0 < int(text) <= 10**9):
        raise ConfigurationError(f"{name} is {text!r}; it must be a whole number above 0")
    return int(text)


def choice(env: Mapping[str, str], name: str, known: Iterable[str], default: str) -> str:
    """One of the words that are *known*, in lower case; *default* where nothing is set."""
    text = env.get(name, "").strip().lower() or default
    if text not in (words := list(known)):
        raise ConfigurationError(f"{name} is {text!r}; it must be one of: {', '.join(words)}")
    return text
