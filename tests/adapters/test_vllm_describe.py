"""What is read of an engine's configuration, and whether vLLM writes spans of phases itself."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_llm import config, guard, semconv
from otel_llm.adapters.vllm import describe
from otel_llm.emit.values import Value
from otel_llm.testing import CapturedTelemetry
from tests.adapters.builders import generate
from tests.emit.builders import written
from tests.fakes.vllm import AsyncLLM
from tests.fakes.vllm_state import configuration


class Backend(Enum):
    """An attention backend as vLLM names them: by a class path."""

    FLASH_ATTN = "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"


class Hostile:
    """Every attribute of it is an error."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("secret")


class Unprintable:
    """It has no text."""

    def __str__(self) -> str:
        raise RuntimeError("secret")


def found(**changes: Any) -> dict[str, Value]:
    """The configuration, by the last part of each name."""
    described = describe.configuration(configuration(**changes))
    return {name.removeprefix(f"{semconv.ENGINE}."): each for name, each in described.items()}


class TestConfiguration:
    """Resource attributes of the engine of a process."""

    def test_sizes(self) -> None:
        """As they are configured."""
        described = found()
        names = ("tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens", "block_size")
        assert [described[name] for name in names] == [2, 128, 8192, 16]
        assert described["prefix_caching"] is True

    def test_name_and_hash(self) -> None:
        """Two engines of the same configuration have the same hash."""
        described = found()
        assert (described["name"], described["config_hash"]) == ("vllm", "0123456789")

    def test_what_is_not_set(self) -> None:
        """It is absent; so is the version of a vLLM that is not installed."""
        absent = {"quantization", "attention_backend", "speculative_method", "version"}
        assert not absent & set(found())

    def test_objects(self) -> None:
        """By the last part of their text, as `torch.bfloat16`."""

        class Dtype:
            """A data type of torch."""

            def __str__(self) -> str:
                return "torch.bfloat16"

        assert found(model_config=SimpleNamespace(dtype=Dtype()))["dtype"] == "bfloat16"

    @pytest.mark.parametrize("nothing", [lambda: None, object, int, SimpleNamespace, Hostile])
    def test_a_configuration_of_another_shape(
        self, nothing: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only the engine's name is known."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        assert describe.configuration(nothing()) == {f"{semconv.ENGINE}.name": "vllm"}

    def test_enums(self) -> None:
        """By their names."""
        described = found(attention_config=SimpleNamespace(backend=Backend.FLASH_ATTN))
        assert described["attention_backend"] == "FLASH_ATTN"

    @pytest.mark.parametrize(
        "value",
        [float("nan"), float("inf"), 2**70, "", Unprintable()],
        ids=lambda value: type(value).__name__,
    )
    def test_values_that_cannot_be_written(
        self, value: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are left out, and the others stay."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        described = found(cache_config=SimpleNamespace(block_size=value, cache_dtype="fp8"))
        assert "block_size" not in described
        assert described["kv_cache_dtype"] == "fp8"

    def test_a_part_that_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What it holds is unknown, and the others stay."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        described = found(cache_config=Hostile())
        assert (described["max_num_seqs"], "block_size" in described) == (128, False)

    def test_a_hash_that_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is absent, and the others stay."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")

        def compute_hash() -> str:
            raise RuntimeError("secret")

        described = found(compute_hash=compute_hash)
        assert (described["max_num_seqs"], "config_hash" in described) == (128, False)

    def test_long_values(self) -> None:
        """Objects' texts are cut."""

        class Long:
            """A value with a long text."""

            def __str__(self) -> str:
                return "x" * 10_000

        assert found(model_config=SimpleNamespace(dtype=Long()))["dtype"] == "x" * 64


class TestEngines:
    """Engines that are made."""

    def test_noted_when_one_is_made(self, engine_type: type[AsyncLLM], clock: Any) -> None:
        """Providers that are made later have it in their resource."""
        config.RUNTIME.engine.clear()
        engine_type(vllm_config=configuration(), clock=clock)
        assert config.RUNTIME.engine[f"{semconv.ENGINE}.max_num_seqs"] == 128

    def test_a_configuration_that_fails(
        self, engine_type: type[AsyncLLM], clock: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The engine is made all the same."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        monkeypatch.setattr(describe, "configuration", None)
        assert engine_type(configuration(), clock=clock).clock is clock
        assert guard.failures["vllm.describe"] == 1

    @pytest.mark.parametrize(
        ("kv_role", "role"),
        [("kv_producer", "prefill"), ("kv_consumer", "decode"), ("kv_both", None), (None, None)],
    )
    async def test_role(
        self, captured: CapturedTelemetry, engine: AsyncLLM, kv_role: str | None, role: str | None
    ) -> None:
        """Which part of disaggregated serving an engine has, on each of its requests."""
        transfer = SimpleNamespace(kv_role=kv_role)
        engine.vllm_config = configuration(kv_transfer_config=transfer)
        await generate(captured, engine)
        assert role == written(captured).get(semconv.ROLE)

    @pytest.mark.parametrize(
        ("model", "name"),
        [
            (SimpleNamespace(served_model_name="tiny", model="org/tiny"), "tiny"),
            (SimpleNamespace(served_model_name=["tiny", "other"], model="org/tiny"), "tiny"),
            (SimpleNamespace(served_model_name=[], model="org/tiny"), "org/tiny"),
            (SimpleNamespace(served_model_name=None, model=None), None),
            (None, None),
        ],
    )
    def test_model(self, model: Any, name: str | None) -> None:
        """The first name that it is served by, else its path."""
        engine = SimpleNamespace(vllm_config=SimpleNamespace(model_config=model))
        assert name == describe.model_of(engine)


class TestPhaseSpans:
    """A newer vLLM may write them."""

    SOURCE = 'span = tracer.start_span("vllm_prefill")'

    @pytest.mark.parametrize(
        "name", ["tracing.py", "tracing/otel.py", "tracing/a/b.py", "v1/engine/output_processor.py"]
    )
    def test_found(self, tmp_path: Path, name: str) -> None:
        """By their name, in the files where vLLM writes spans."""
        put(tmp_path / name, self.SOURCE)
        assert describe.makes_phase_spans(tmp_path)

    @pytest.mark.parametrize("name", ["v1/engine/core.py", "tracing/readme.md", "other.py"])
    def test_elsewhere(self, tmp_path: Path, name: str) -> None:
        """Other files are not looked at."""
        put(tmp_path / name, self.SOURCE)
        assert not describe.makes_phase_spans(tmp_path)

    def test_none(self, tmp_path: Path) -> None:
        """A vLLM of today."""
        put(tmp_path / "tracing/otel.py", "SPAN = 'llm_request'")
        assert not describe.makes_phase_spans(tmp_path)

    def test_a_file_that_is_no_text(self, tmp_path: Path) -> None:
        """It is read as far as it can be."""
        path = tmp_path / "tracing.py"
        path.write_bytes(b"\xff\xfe" + self.SOURCE.encode())
        assert describe.makes_phase_spans(tmp_path)

    def test_a_huge_file(self, tmp_path: Path) -> None:
        """It is not read."""
        put(tmp_path / "tracing.py", self.SOURCE + " " * describe.LARGEST_FILE)
        assert not describe.makes_phase_spans(tmp_path)

    def test_no_vllm(self) -> None:
        """Nothing is installed here."""
        assert not describe.makes_phase_spans()


def put(path: Path, text: str) -> None:
    """Write a file of the installed vLLM."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
