"""An Ollama that runs already: which model it has, and what to do if it has none."""

from __future__ import annotations

from typing import Any

from otel_llm.demo.child import DemoError
from otel_llm.demo.forward import checked_url
from otel_llm.demo.http import get_json
from otel_llm.doctor.finding import address

DEFAULT_URL = "http://127.0.0.1:11434"


class OllamaTarget:
    """A running Ollama; it is neither started nor stopped here.

    Args:
        url: Its base URL.
        model: The model to ask; by default the first that generates text.
    """

    name = "Ollama"

    def __init__(self, url: str = DEFAULT_URL, model: str | None = None) -> None:
        self._url = checked_url(url, "--url")
        self.model = model or ""

    def start(self) -> str:
        """Find it and its model; returns its base URL.

        Raises:
            DemoError: It does not run, or the model is not there.
        """
        models = self._models()
        if not models:
            raise DemoError(
                f"Ollama at {address(self._url)} has no model that generates text; "
                "pull one: ollama pull qwen3:0.6b"
            )
        wanted = self.model or models[0]
        if wanted not in models and f"{wanted}:latest" not in models:
            known = ", ".join(models)
            raise DemoError(
                f"Ollama at {address(self._url)} has no model {wanted}; run: ollama pull {wanted}, "
                f"or use one of: {known}"
            )
        self.model = wanted
        return self._url

    def check(self) -> None:
        """Nothing: it is somebody else's process."""

    def stop(self) -> None:
        """Nothing: it is somebody else's process."""

    def _models(self) -> list[str]:
        try:
            found: Any = get_json(f"{self._url}/api/tags")
            return [str(each["name"]) for each in found["models"] or () if _generates(each)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise DemoError(
                f"no Ollama answers at {address(self._url)}; start it with: ollama serve "
                "(or say where it is with --url)"
            ) from None


def _generates(model: Any) -> bool:
    """Older versions do not say what a model can do."""
    return "completion" in model.get("capabilities", ("completion",))
