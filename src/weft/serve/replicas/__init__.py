"""Replicas: a model on several machines of a Ray cluster, behind one server. Needs `weft[ray]`.

`front.py` is the application that people reach; `deployment.py` is what Ray Serve runs on the
machines, and `pool.py` has actors for batches, both around the model of `loaded.py`.
"""

from weft.serve.replicas.front import create_front
from weft.serve.replicas.pool import Pool
from weft.serve.replicas.recipe import Recipe, describe
from weft.serve.replicas.replicas import ReplicaOptions, Replicas

__all__ = ["Pool", "Recipe", "ReplicaOptions", "Replicas", "create_front", "describe"]
