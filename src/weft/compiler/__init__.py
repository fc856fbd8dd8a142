"""From a graph to a program: `compile(graph, devices) -> Program`, the stages one call a line."""

from weft.compiler.pipeline import (
    Plan,
    compile,
    lower_plan,
    plan_graph,
    planned_again,
    repacked,
    resolve_devices,
)

__all__ = [
    "Plan",
    "compile",
    "lower_plan",
    "plan_graph",
    "planned_again",
    "repacked",
    "resolve_devices",
]
