"""A call over a line of 20 ms that loses a packet, in a network namespace of its own.

Run as `unshare -rn python -m tests.clients.far line`; prints a JSON object. Without `line`, and
where the machine does not permit it, the calls go over loopback and `real` is false. The line is a
TUN device. What is sent to its far end comes back from there 10 ms later, so that the machine talks
to itself as to a distant one.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

import otel_llm
from otel_llm.testing import captured_telemetry
from tests.clients.builders import STREAMED, client, requests
from tests.fakes.openai_server import OpenAIServer, stream

HERE, THERE = "10.9.0.1", "10.9.0.2"
ONE_WAY_S = 0.01
TUNSETIFF, IFF_TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
PROMPT = [{"role": "user", "content": "hi " * 300}]


class Server(OpenAIServer):
    """A server at this end of the line, or on loopback."""

    host = "127.0.0.1"

    def server_bind(self) -> None:
        self.server_address = (self.host, 0)
        super().server_bind()

    @property
    def url(self) -> str:
        host = THERE if self.host == HERE else self.host
        return f"http://{host}:{self.server_address[1]}/v1"


def opened() -> int:
    """The device. Raises OSError where that is not permitted."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"far", IFF_TUN_WITHOUT_HEADER))
    for command in (f"ip addr add {HERE}/24 dev far", "ip link set far up"):
        if subprocess.run(command.split(), check=False).returncode:
            raise PermissionError
    return device


def turned_round(device: int) -> None:
    """Send every packet back with its addresses swapped; the first long one is lost."""
    lost = False
    while packet := os.read(device, 65536):
        if packet[0] >> 4 != 4:
            continue
        if len(packet) > 700 and not lost:
            lost = True
            continue
        back = packet[:12] + packet[16:20] + packet[12:16] + packet[20:]
        threading.Timer(ONE_WAY_S, os.write, (device, back)).start()


def main() -> None:
    """Two calls over one connection: the first one loses a packet."""
    with suppress(OSError):
        if "line" in sys.argv:
            threading.Thread(target=turned_round, args=(opened(),), daemon=True).start()
            Server.host = HERE
    captured = captured_telemetry()
    otel_llm.instrument(engines=["openai"], **captured.providers)
    server = Server([stream(2)])
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    with client(server) as made:
        for _ in range(2):
            made.chat.completions.with_raw_response.create(
                **STREAMED | {"messages": PROMPT}
            ).http_response.read()
    found: list[Any] = [dict(each.attributes) for each in requests(captured)]
    print(json.dumps({"real": Server.host == HERE, "calls": found}), flush=True)
    os._exit(0)  # nobody closes the line


if __name__ == "__main__":
    main()
