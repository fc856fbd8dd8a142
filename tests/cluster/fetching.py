"""Run by `test_ray_data.py`: processes on all nodes of a cluster ask for a model that they lack."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(address: str, model: str, cache: str) -> None:
    import ray

    from weft.cluster.model_files import ModelFiles, describe_files, have_files
    from weft.serve.options import ServeOptions
    from weft.serve.replicas import describe
    from weft.serve.replicas.deployment import files_actor, reader

    ray.init(address, log_to_driver=False, logging_level="error")
    actor = files_actor(describe(model, ServeOptions(), {}))
    assert actor is not None

    def ask(name: str, files: ModelFiles) -> tuple[str, str, int]:
        n_read = 0
        read = reader(name)
        assert read is not None

        def counted(path: str, n: int) -> bytes:
            nonlocal n_read
            n_read += 1
            return read(path.replace("/nowhere", str(Path(model).parent)), n)

        node = ray.get_runtime_context().get_node_id()
        path = have_files(files, Path(cache) / node, counted)
        return node, str(path), n_read

    known = describe_files(model, Path(cache))
    lacking = ModelFiles(f"/nowhere/{model.rpartition('/')[2]}", False, known.files)
    task = ray.remote(ask).options(num_cpus=0.5, scheduling_strategy="SPREAD")
    print(json.dumps(ray.get([task.remote(actor.name, lacking) for _ in range(6)])))
    actor.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
