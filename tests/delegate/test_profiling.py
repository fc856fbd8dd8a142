"""Each step of weft is a profiling event with the debug handle of the node that it computes."""

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]


def test_the_inspector_shows_each_step_with_its_node(lower, tmp_path):
    from executorch.devtools import Inspector
    from executorch.exir import to_edge_transform_and_lower
    from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
    from torch.export import export

    from weft_executorch import WeftPartitioner

    # the first product and its activation are one step, which has the node of the activation
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(-1)).eval()
    x = torch.randn(2, 8)
    with torch.no_grad():
        edge = to_edge_transform_and_lower(
            export(module, (x,)), partitioner=[WeftPartitioner()], generate_etrecord=True
        )
        program = edge.to_executorch()
    record, dump = tmp_path / "model.etrecord", tmp_path / "run.etdp"
    program.get_etrecord().save(str(record))
    loaded = _load_for_executorch_from_buffer(program.buffer, enable_etdump=True)
    for _ in range(3):
        loaded.run_method("forward", (x,))
    loaded.write_etdump_result_to_file(str(dump))
    inspector = Inspector(etdump_path=str(dump), etrecord=str(record))
    events = [e for block in inspector.event_blocks for e in block.events if e.is_delegated_op]
    assert len(events) == 3
    assert all(e.delegate_backend_name == "WeftBackend" for e in events)
    assert all(len(e.perf_data.raw) == 3 and min(e.perf_data.raw) > 0 for e in events)
    ops = {op for e in events for op in e.op_types}
    assert {"aten.linear.default", "aten.relu.default"} <= ops
    assert any("softmax" in op for op in ops)
