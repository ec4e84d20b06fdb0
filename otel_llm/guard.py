"""The one place where errors of telemetry end.

Application code runs outside every guard; only our own bookkeeping runs inside one. In
production an error is counted and logged once per place, without its message (a message may
quote a prompt). Under `OTEL_LLM_STRICT=1` it is raised, so that tests see it.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from types import TracebackType
from typing import Final

_log = logging.getLogger("otel_llm")
failures: Final[Counter[str]] = Counter()
"""How often each guarded place has failed in this process."""


def strict() -> bool:
    """True when `OTEL_LLM_STRICT` is set to 1, true, yes or on."""
    return os.environ.get("OTEL_LLM_STRICT", "").strip().lower() in {"1", "true", "yes", "on"}


class guard:  # noqa: N801 - reads as a statement: `with guard("vllm.finish"):`
    """Context manager that keeps an error of telemetry from reaching the application.

    Only `Exception` is held back: cancellation, `KeyboardInterrupt` and `SystemExit` pass.
    """

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        if strict():
            return False
        report(self._where, error)
        return True


def report(where: str, error: BaseException) -> None:
    """Count a failure, and log the first one of each place."""
    failures[where] += 1
    if failures[where] == 1:
        _log.warning(
            "telemetry failed in %s (%s); further failures there are counted only",
            where,
            type(error).__name__,
        )
