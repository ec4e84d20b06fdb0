"""Serve a simulated engine: `python -m otel_llm.simulator.serving --dialect vllm --port 8000`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from otel_llm.errors import MissingDependencyError, OtelLLMError
from otel_llm.simulator.engine import Engine, EngineConfig
from otel_llm.simulator.hardware import HARDWARE, MODELS
from otel_llm.simulator.serving import DIALECTS, ServingApp, ServingConfig


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line until it is interrupted; 0, or 1 with a message."""
    given = _parser().parse_args(arguments)
    try:
        _serve(_app(given), given.host, given.port)
    except (OtelLLMError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m otel_llm.simulator.serving", description=__doc__)
    parser.add_argument("--dialect", choices=sorted(DIALECTS), default="vllm")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=_port, default=8000, help="0 takes a free one")
    parser.add_argument("--hardware", choices=sorted(HARDWARE), default="L4")
    parser.add_argument("--model", choices=sorted(MODELS), default="Llama-3.1-8B")
    parser.add_argument("--name", help="what clients call the model; its own name by default")
    parser.add_argument("--speed", type=float, default=1.0, help="how many times faster")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _port(text: str) -> int:
    if not 0 <= int(text) <= 65535:
        raise ValueError(text)
    return int(text)


def _app(given: argparse.Namespace) -> ServingApp:
    engine = EngineConfig.of(HARDWARE[given.hardware], MODELS[given.model])
    config = ServingConfig(model=given.name or given.model, seed=given.seed, speed=given.speed)
    return DIALECTS[given.dialect](Engine(engine, seed=given.seed), config)


def _serve(app: ServingApp, host: str, port: int) -> None:
    try:
        import uvicorn
    except ImportError:
        raise MissingDependencyError("uvicorn", extra="demo") from None

    class Server(uvicorn.Server):
        async def startup(self, *arguments: object, **more: object) -> None:
            await super().startup(*arguments, **more)  # type: ignore[arg-type]
            if self.started:
                bound = self.servers[0].sockets[0].getsockname()
                sys.stdout.write(f"listening on http://{bound[0]}:{bound[1]}\nready\n")
                sys.stdout.flush()

    # Only vLLM is a uvicorn; the others say nothing of what they are.
    name = app.dialect == "vllm"
    config = uvicorn.Config(
        app, host, port, log_level="warning", ws="none", lifespan="on", server_header=name
    )
    Server(config).run()


if __name__ == "__main__":
    sys.exit(main())
