"""How much of a shard is read first: its header, and little more."""

from each_row import each_row

from streamer.core.checkpoint.catalog import LEAST_FIRST_BYTES, _first_bytes
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve


@each_row(
    ("size_bytes", "first_bytes"),
    [
        (10, 10),
        (LEAST_FIRST_BYTES, LEAST_FIRST_BYTES),
        (100_000, LEAST_FIRST_BYTES),
        (1 << 20, LEAST_FIRST_BYTES),
        (4 << 20, 64 << 10),
        (16 << 20, 256 << 10),
        (5 << 30, 256 << 10),
    ],
)
def test_a_small_shard_is_read_by_a_part(size_bytes, first_bytes):
    assert _first_bytes(size_bytes, resolve(None)) == first_bytes


def test_the_users_own_size_is_the_largest():
    assert _first_bytes(5 << 30, resolve(Options(header_bytes=8))) == 8
    assert _first_bytes(1 << 20, resolve(Options(header_bytes=1 << 20))) == LEAST_FIRST_BYTES
