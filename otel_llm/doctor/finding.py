"""What the doctor found, and how it is told: as text or as JSON, without secrets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import groupby
from urllib.parse import urlsplit

SCHEMA_VERSION = 1


class Level(StrEnum):
    """How much a finding matters; `warning` and `error` make the command's exit status 1."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    `id` is stable and `group.name`. `why` says what follows from it, `remedy` what to do; both
    are None where nothing is to be said.
    """

    id: str
    level: Level
    what: str
    why: str | None = None
    remedy: str | None = None

    @property
    def group(self) -> str:
        """The first part of the id."""
        return self.id.partition(".")[0]


def ok(name: str, what: str) -> Finding:
    """A finding that all is well."""
    return Finding(name, Level.OK, what)


def info(name: str, what: str, why: str, remedy: str | None = None) -> Finding:
    """A finding that is good to know."""
    return Finding(name, Level.INFO, what, why, remedy)


def warning(name: str, what: str, why: str, remedy: str) -> Finding:
    """A finding that costs telemetry."""
    return Finding(name, Level.WARNING, what, why, remedy)


def error(name: str, what: str, why: str, remedy: str) -> Finding:
    """A finding with which there is no telemetry, or worse."""
    return Finding(name, Level.ERROR, what, why, remedy)


def failed(findings: Iterable[Finding]) -> bool:
    """Whether there is a warning or an error among *findings*."""
    return any(each.level in {Level.WARNING, Level.ERROR} for each in findings)


def summary(findings: Iterable[Finding]) -> dict[str, int]:
    """How many findings there are of each level; levels without any are 0."""
    counts = Counter(each.level for each in findings)
    return {level.value: counts[level] for level in Level}


def as_json(findings: list[Finding]) -> str:
    """The report for machines; its form changes only with `version`."""
    report = {
        "version": SCHEMA_VERSION,
        "findings": [asdict(each) for each in findings],
        "summary": summary(findings),
    }
    return json.dumps(report, indent=2)


_TITLES = {
    "install": "Installed",
    "vllm": "What is seen of vLLM",
    "plugin": "vLLM plugin",
    "twice": "Other instrumentation",
    "config": "Configuration",
    "export": "Export",
    "command": "vLLM command line",
}
_SYMBOLS = {Level.OK: "✔", Level.INFO: "i", Level.WARNING: "!", Level.ERROR: "✘"}
_ASCII = {**_SYMBOLS, Level.OK: "+", Level.ERROR: "x"}
_STYLES = {Level.OK: "green", Level.INFO: "cyan", Level.WARNING: "yellow", Level.ERROR: "red"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the text report: how far it is indented, and its style in Rich's words."""

    text: str
    indent: int = 0
    style: str = ""


def as_lines(findings: Iterable[Finding], *, unicode: bool = True) -> Iterator[Line]:
    """The report for people: groups, a symbol per level, remedies indented, a summary."""
    findings = list(findings)
    symbols = _SYMBOLS if unicode else _ASCII
    for group, members in groupby(findings, lambda each: each.group):
        yield Line(_TITLES[group], style="bold")
        for each in members:
            yield Line(f"{symbols[each.level]} {each.what}", 2, _STYLES[each.level])
            if each.why:
                yield Line(each.why, 4)
            if each.remedy:
                yield Line(f"{'→' if unicode else '->'} {each.remedy}", 4, "bold")
        yield Line("")
    yield Line(_summary_line(findings), style="bold")


def _summary_line(findings: list[Finding]) -> str:
    counts = summary(findings)
    if not failed(findings):
        return f"Nothing is in the way ({counts['ok']} ok, {counts['info']} to know)."
    return f"{_count(counts['error'], 'error')}, {_count(counts['warning'], 'warning')}."


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def address(url: str) -> str:
    """*url* without user, password, query and fragment; never raises."""
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
    except ValueError:
        return "an address that cannot be read"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme else f"{host}{parts.path}"
