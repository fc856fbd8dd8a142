"""A pytest plugin that runs ExecuTorch's operator suite through weft.

    pytest -p weft_executorch.suite_plugin --weft-flows weft,weft_q8_0 --weft-results FILE
           .../executorch/backends/test/suite/operators

Flows: `weft` (weights as they are), `weft_q8_0` (weights of linear layers as q8_0, activations
quantized per call), and the flows of the suite itself, `portable` and `xnnpack` among them. Each
case becomes a line of JSON in FILE. Its outcome is "delegated" if it passes and nothing is left
outside of the delegate, "partly" with some ops outside, "undelegated" with nothing delegated,
"skipped" or "failed"."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from executorch.backends.test.harness import Tester
from executorch.backends.test.harness.stages import StageType, ToEdgeTransformAndLower
from executorch.backends.test.suite import flow as suite_flow
from executorch.backends.test.suite.flow import TestFlow
from executorch.backends.test.suite.reporting import TestResult

import weft_executorch
from weft_executorch.options import Options
from weft_executorch.partitioner import WeftPartitioner


class _WeftTester(Tester):
    """Lowers with a WeftPartitioner of these options."""

    __test__ = False

    def __init__(self, options: Options, module: Any, example_inputs: Any, **how: Any) -> None:
        def lowers(*args: Any, **kwargs: Any) -> ToEdgeTransformAndLower:
            return ToEdgeTransformAndLower(partitioners=None, default_partitioner_cls=partitioner)

        def partitioner() -> WeftPartitioner:
            return WeftPartitioner(options)

        stages = Tester.default_stage_classes() | {StageType.TO_EDGE_TRANSFORM_AND_LOWER: lowers}
        super().__init__(module=module, stage_classes=stages, example_inputs=example_inputs, **how)


def _flow(name: str, options: Options) -> TestFlow:
    def factory(module: Any, inputs: Any, **how: Any) -> Tester:
        return _WeftTester(options, module, inputs, **how)

    return TestFlow(name, backend="weft", tester_factory=factory)


_OURS: dict[str, Callable[[], TestFlow]] = {
    "weft": lambda: _flow("weft", Options()),
    "weft_q8_0": lambda: _flow("weft_q8_0", Options(weights="q8_0")),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options above."""
    parser.addoption("--weft-flows", default="weft")
    parser.addoption("--weft-results", default="")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Puts the flows where the suite's own conftest looks for them when it is imported."""
    weft_executorch.load()
    theirs = suite_flow.all_flows
    options = early_config.known_args_namespace
    flows = options.weft_flows.split(",")

    def all_flows() -> dict[str, TestFlow]:
        others = theirs() if set(flows) - set(_OURS) else {}
        return {name: _OURS[name]() if name in _OURS else others[name] for name in flows}

    suite_flow.all_flows = all_flows
    if options.weft_results:
        Path(options.weft_results).write_text("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Writes down each case by its last sub-run."""
    report = yield
    results = item.config.getoption("--weft-results")
    outcome = report.when == "call" or (report.when == "setup" and report.skipped)
    if results and outcome:
        with Path(results).open("a") as out:
            out.write(json.dumps(_row(item, report)) + "\n")
    return report


def _row(item: pytest.Item, report: pytest.TestReport) -> dict[str, Any]:
    runner = getattr(item, "funcargs", {}).get("test_runner")
    last = runner._results[-1] if runner is not None and runner._results else None
    row: dict[str, Any] = {
        "file": item.path.stem.removeprefix("test_"),
        "case": item.name,
        "flow": runner._flow.name if runner is not None else "",
        "outcome": _outcome(report, last),
    }
    if last is not None:
        row["result"] = last.result.name
        row["error"] = str(last.error)[:400] if last.error is not None else ""
        row["left"] = dict(last.undelegated_op_counts or {})
    elif report.skipped:
        row["error"] = str(report.longrepr)[-200:]
    return row


def _outcome(report: pytest.TestReport, last: Any) -> str:
    if report.failed:
        return "failed"
    if last is None or report.skipped:
        return "skipped"
    if last.result is TestResult.SUCCESS_UNDELEGATED or not last.is_delegated():
        return "undelegated"
    return "partly" if last.undelegated_op_counts else "delegated"
