"""Reading what the demo prints."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

from otel_llm.analysis.report import schema


def report(text: str) -> dict[str, Any]:
    """The JSON report, which keeps its schema; there is nothing else."""
    found: dict[str, Any] = json.loads(text)
    Draft202012Validator(schema()).validate(found)
    return found
