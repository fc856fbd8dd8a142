"""`weft serve --ray`: a model by replicas on many machines, behind one address."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from weft.batch import Answer, Line
from weft.cli.console import say
from weft.cli.ray_options import OnRay
from weft.errors import WeftError
from weft.tables import size_text


def serve_replicas(
    api: Any,
    model: Path,
    options: Any,
    arguments: dict[str, Any],
    on_ray: OnRay,
    *,
    quiet: bool,
    verbose: bool,
) -> None:
    """Serves a model by replicas until a signal ends it. `api` is `weft.serve`, `options` its
    `ServeOptions`, `arguments` the further ones of `Service`."""
    from weft.cluster.ray_cluster import join

    with api.take_address(options) as address, api.Resources(options) as resources:
        joined = join(on_ray.address)
        from weft.serve.log import logger
        from weft.serve.replicas import ReplicaOptions, Replicas, create_front

        least, most = on_ray.number()
        cpus = threads_and_cpus(arguments, least, most)
        recipe = make_recipe(model, options, arguments)
        front = dataclasses.replace(options, parallel=options.parallel * least)
        replicas = Replicas(recipe, front, ReplicaOptions(least, most, cpus))
        if not quiet:
            say(joined)
            say(_replica_line(recipe, least, most, cpus))
        replicas.start(say)

        def ready(url: str) -> None:
            say(f"serving {replicas.model_id} at {url}/v1; Ctrl-C stops it and all replicas")

        def replace() -> None:
            try:
                replicas.replace(make_recipe(model, options, arguments))
            except WeftError as error:
                logger.error("replicas: %s", error)
            else:
                logger.info("replicas: all are new")

        resources.also_reload("model", lambda: Thread(target=replace, daemon=True).start())
        try:
            app = create_front(replicas, resources.shared)
            api.run_server(replicas, app, resources, address, ready)
        finally:
            replicas.close()


@contextmanager
def batch_actors(
    model: Path, options: Any, arguments: dict[str, Any], on_ray: OnRay, *, quiet: bool
) -> Iterator[tuple[Callable[[Line], Awaitable[Answer]], int]]:
    """Starts actors that answer the lines of a batch. Gives what answers a line and the most lines
    under way."""
    from weft.cluster.ray_cluster import join

    joined = join(on_ray.address)
    from weft.serve.replicas import Pool

    _, n = on_ray.number()
    cpus = threads_and_cpus(arguments, n, n)
    recipe = make_recipe(model, options, arguments)
    if not quiet:
        say(joined)
        say(_replica_line(recipe, n, n, cpus))
    pool = Pool(recipe, n, cpus, 2 * options.parallel)
    try:
        pool.start(say)
        yield pool.answer, pool.most_open
    finally:
        pool.close()
        if not quiet and pool.n_died:
            say(f"{pool.n_died} actors died and were started again; no row was lost")


def threads_and_cpus(arguments: dict[str, Any], least: int, most: int) -> int:
    """The CPUs of each replica: as many as `--threads` says, or as there are for each of `most`;
    `arguments` then has as many threads."""
    from weft.cluster.ray_cluster import cpus_each

    threads = arguments["threads"]
    n = cpus_each(least, most, threads.n_threads)
    arguments["threads"] = dataclasses.replace(threads, n_threads=n)
    return n


def make_recipe(model: Path, options: Any, arguments: dict[str, Any]) -> Any:
    """The recipe of a model, after a look at its file, so that mistakes are told at once."""
    from weft.frontends.models import open_model
    from weft.llm.config_keys import read_config
    from weft.serve.replicas import describe

    with open_model(model) as file:
        read_config(file)
    return describe(model, options, arguments)


def _replica_line(recipe: Any, least: int, most: int, cpus: int) -> str:
    number = f"{least}" if least == most else f"{least} to {most}"
    replicas = f"{number} replica{'s' * (most != 1)}"
    return (
        f"{recipe.options.alias}: {size_text(recipe.size)}, {replicas} with {cpus} "
        f"CPU{'s' * (cpus != 1)} each"
    )
