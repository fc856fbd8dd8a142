"""From a graph to a program: `compile(graph, devices) -> Program`, with a call for each stage."""

from weft.compiler.layouts import Layouts, of_one_op
from weft.compiler.pipeline import (
    HasGraph,
    Plan,
    compile,
    keeps_activations,
    lower_plan,
    plan_graph,
    planned_again,
    repacked,
    require_compile_options,
    resolve_devices,
)

__all__ = [
    "HasGraph",
    "Layouts",
    "Plan",
    "compile",
    "keeps_activations",
    "lower_plan",
    "of_one_op",
    "plan_graph",
    "planned_again",
    "repacked",
    "require_compile_options",
    "resolve_devices",
]
