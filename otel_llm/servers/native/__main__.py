"""Write the Collector's configuration: `python -m otel_llm.servers.native > FILE`."""

import sys

from otel_llm.servers.native.ottl import as_yaml

if __name__ == "__main__":
    sys.stdout.buffer.write(as_yaml().encode())
