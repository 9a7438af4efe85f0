"""Read small tensors of an open checkpoint one after the other, on kept connections and on new connections.

    python benchmarks/bench_open.py [--reads 100]

The server is nginx on loopback, as S3 with and without TLS. `kept` is what `streamer.open` does; `new` closes all
connections before each read. The time of each read is measured, without the listing and the headers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

from bench_load import HERE, targets
from checkpoint import make_or_reuse
from nginx_origin import NginxOrigin

SIZE_BYTES = 1 << 30
SMALL_BYTES = 100_000


def main() -> None:
    import streamer

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reads", type=int, default=100)
    arguments = parser.parse_args()
    folder = (HERE.parent / ".bench" / f"model-{SIZE_BYTES}").resolve()
    shards = make_or_reuse(folder, SIZE_BYTES, 4)
    for section in ("http", "https"):
        with NginxOrigin(folder.parent) as origin:
            target = targets(section, shards, origin)
            os.environ.update(target.environment())
            with streamer.open(target.paths, storage_options=target.storage_options()) as checkpoint:
                small = [name for name in checkpoint if checkpoint[name].nbytes < SMALL_BYTES]
                for connections in ("kept", "new", "kept", "new"):
                    seconds = []
                    for number in range(arguments.reads):
                        if connections == "new":
                            streamer.release()
                        began = time.perf_counter()
                        checkpoint.get_tensor(small[number % len(small)])
                        seconds.append(time.perf_counter() - began)
                    middle, best = statistics.median(seconds) * 1e3, min(seconds) * 1e3
                    print(f"{section:5} {connections:4} connections: median {middle:5.2f} ms, best {best:5.2f} ms")


if __name__ == "__main__":
    main()
