"""Replicas: a model on several machines of a Ray cluster, behind one server. Needs `weft[ray]`.

options.py     how many replicas there are
recipe.py      what a replica loads, and the files of it that a machine may lack
loaded.py      a loaded model that answers requests as data, wherever it runs
deployment.py  the class that Ray Serve runs on the machines
replicas.py    starts, counts, replaces and ends the replicas
calls.py       a request to a replica: parts of the answer, and another try where nothing was sent
front.py       the application that people reach: keys, limits, files; it hands requests on
gathered.py    the metrics of all replicas
pool.py        plain actors for batches, which end with the process that started them
"""

from weft.serve.replicas.front import create_front
from weft.serve.replicas.pool import Pool
from weft.serve.replicas.recipe import Recipe, describe
from weft.serve.replicas.replicas import ReplicaOptions, Replicas

__all__ = [
    "Pool",
    "Recipe",
    "ReplicaOptions",
    "Replicas",
    "create_front",
    "describe",
]
