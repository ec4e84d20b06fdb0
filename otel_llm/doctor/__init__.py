"""`otel-llm doctor`: what is installed, what will be seen, and what is in the way.

`gather` looks at the machine once and gives an `Environment`; `examine` judges it and touches
nothing. `docs/doctor.md` lists the findings.
"""

from __future__ import annotations

from otel_llm.doctor.commandline import check as check_commandline
from otel_llm.doctor.configuration import check as check_configuration
from otel_llm.doctor.environment import Environment
from otel_llm.doctor.export import check as check_export
from otel_llm.doctor.finding import Finding
from otel_llm.doctor.installation import check as check_installation
from otel_llm.doctor.plugin import check as check_plugin
from otel_llm.doctor.sources import check as check_sources

_CHECKS = (
    check_installation,
    check_sources,
    check_plugin,
    check_configuration,
    check_export,
    check_commandline,
)


def examine(environment: Environment) -> list[Finding]:
    """Every finding about *environment*, grouped by the first part of its id."""
    return [finding for check in _CHECKS for finding in check(environment)]
