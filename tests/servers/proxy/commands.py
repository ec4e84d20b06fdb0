"""`otel-llm proxy` as its users run it: a process, its lines, its end."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from otel_llm.servers.proxy.settings import Address, parse_address
from tests.demo.commands import environment

MAIN = "from otel_llm.cli import main; main()"


@dataclass
class Command:
    """One running proxy."""

    process: Process
    address: Address = field(default=Address("", 0))
    admin: Address | None = None
    said: list[str] = field(default_factory=list)
    """The lines of its output so far."""

    async def ready(self) -> None:
        """Read its output up to the line `ready`."""
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            while (line := (await self.process.stdout.readline()).decode().strip()) != "ready":
                assert line, await self.rest()
                self.said.append(line)
                what, _, url = line.partition(" on http://")
                if what == "listening":
                    self.address = parse_address(url, "")
                else:
                    self.admin = parse_address(url, "")

    async def rest(self) -> str:
        """Everything that it still says, once it has ended."""
        out, errors = await self.process.communicate()
        return (out + errors).decode()

    @property
    def resident_kib(self) -> int:
        """Resident memory of the process in KiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def start(*words: str, **variables: str) -> Process:
    """Start it, with its output in pipes."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        MAIN,
        "proxy",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**variables),
    )


@asynccontextmanager
async def running(
    upstream: Address, *words: str, admin: str = "127.0.0.1:0", **variables: str
) -> AsyncIterator[Command]:
    """A proxy before *upstream*, that is ready; it exports nowhere unless *variables* say so."""
    quiet = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
    options = ["--upstream", f"http://{upstream.text}", "--listen", "127.0.0.1:0"]
    given = quiet | variables if "OTEL_EXPORTER_OTLP_ENDPOINT" not in variables else variables
    command = Command(await start(*options, "--admin", admin, *words, **given))
    try:
        await command.ready()
        yield command
    finally:
        with suppress(ProcessLookupError):
            command.process.kill()
        await command.process.wait()
