"""Run by `test_ray_data.py`: answers the rows of a dataset, and writes them to a file."""

from __future__ import annotations

import json
import sys


def main(address: str, model: str, kept: str, out: str, n: str) -> None:
    import ray

    import weft.ray

    ray.init(address, log_to_driver=False, logging_level="error")
    rows = ray.data.from_items(
        [{"id": i, "prompt": f"What is {i} + 1?" if i != 3 else ""} for i in range(int(n))]
    )
    answered = weft.ray.map_batches(
        rows, model, replicas=(1, 2), parallel=4, batch_size=16, kept=kept, max_tokens=16,
        temperature=0, ignore_eos=True,
    )  # fmt: skip
    with open(out, "w") as file:
        for row in answered.iter_rows():
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
