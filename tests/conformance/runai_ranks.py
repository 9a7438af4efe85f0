"""Runs Run:ai's distributed tests on one rank: ``torchrun --nproc-per-node 2 -m conformance.runai_ranks FOLDER``."""

from __future__ import annotations

import sys
import unittest

import torch.distributed as dist


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    suite = unittest.defaultTestLoader.discover(folder, "dist_test_*.py", folder)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    print(f"rank {dist.get_rank()}: {result.testsRun} run, {len(result.skipped)} skipped")
    is_good = result.wasSuccessful()
    dist.destroy_process_group()
    sys.exit(not is_good)


if __name__ == "__main__":
    main(sys.argv[1])
