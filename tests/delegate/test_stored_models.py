"""Files of tests/data/delegate, as they were stored: each layout of weights, threads of callers."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.delegate.make import MODELS
from weft import _native
from weft_executorch import program_generated as fb

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]

DATA = Path(__file__).parents[1] / "data" / "delegate"
ROWS, PANELS, LOOKUP = range(3)


def load(name, method="forward", data=None):
    from executorch.runtime import Runtime

    data = (DATA / f"{name}.pte").read_bytes() if data is None else bytes(data)
    program = Runtime.get().load_program(data)
    loaded = program.load_method(method)
    loaded.kept = (program, data)  # the runtime does not keep the bytes
    return loaded


@pytest.mark.parametrize("name", MODELS)
def test_stored_files_run(name):
    make, methods, _ = MODELS[name]
    torch.manual_seed(1)
    module = make().eval()
    if len(methods) > 1:
        methods = {"prefill": methods["prefill"]}  # the other one sees what this one keeps
    for method, (inputs, _) in methods.items():
        with torch.no_grad():
            want = module(*inputs)
        got = load(name, method).execute(list(inputs))
        for g, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
            # q4_0 and tq2_0 round weights: what is tested is that the file still runs
            near = 1e-4 if name in ("state", "types", "conv") else 1.0
            torch.testing.assert_close(g, w, atol=near, rtol=near)


class Layouts:
    """A file with one block-quantized weight, and its places for layouts and bytes."""

    def __init__(self, name):
        from executorch.exir._serialize._program import deserialize_pte_binary

        self.data = bytearray((DATA / f"{name}.pte").read_bytes())
        file = deserialize_pte_binary(bytes(self.data))
        blob = bytes(file.program.backend_delegate_data[0].data)
        begin = bytes(self.data).index(blob)
        program = fb.Program.GetRootAs(blob, 0)
        tensors = [program.Tensors(i) for i in range(program.TensorsLength())]
        self.tensor = next(t for t in tensors if t.Layout() != ROWS)
        self.kind = self.tensor.Type()
        self.ne = [self.tensor.Ne(i).Value() for i in range(2)]
        self.layout = begin + self.place(self.tensor, 8)
        buffer = program.Buffers(self.tensor.Buffer())
        self.stored = begin + self.place(buffer, 12) if buffer.Stored() else None
        entry = file.named_data.pte_data[buffer.Key().decode()]
        weight = bytes(file.named_data.buffers[entry.buffer_index])
        at = bytes(self.data).index(weight)
        self.at = slice(at, at + len(weight))

    @staticmethod
    def place(table, field):
        return table._tab.Offset(field) + table._tab.Pos

    def wants(self, layout):
        self.data[self.layout] = layout
        return self

    def rows(self):
        """Stores the weight as rows."""
        panels = np.frombuffer(bytes(self.data[self.at]), np.uint8)
        rows = np.empty_like(panels)
        pool = _native.ThreadPool(1)
        _native.deinterleave(self.kind, panels, rows, self.ne[1], self.ne[0], pool)
        self.data[self.at] = rows.tobytes()
        self.data[self.stored] = ROWS
        return self


def result(name, data):
    x = MODELS[name][1]["forward"][0]
    return load(name, data=data).execute(list(x))[0]


@pytest.mark.parametrize(("name", "layouts"), [("sizes", 2), ("ternary", 3)])
def test_weights_are_used_as_they_are_or_repacked(name, layouts):
    """Stored in panels or rows, weights become every layout that kernels read; each layout rounds
    activations in its own way."""
    assert Layouts(name).tensor.Layout() == PANELS and Layouts(name).stored
    want = result(name, Layouts(name).data)
    changed = [Layouts(name).wants(ROWS), Layouts(name).rows(), Layouts(name).rows().wants(ROWS)]
    if layouts == 3 and _native.lookup_types(_native.best_target()):
        changed.append(Layouts(name).rows().wants(LOOKUP))
    for file in changed:
        got = result(name, file.data)
        assert float((got - want).norm() / want.norm()) < 0.02


@pytest.mark.skipif(
    not _native.lookup_types(_native.best_target()), reason="this target has no lookups in tables"
)
def test_panels_do_not_become_lookups():
    with pytest.raises(RuntimeError, match="0x:23"):  # InvalidProgram
        result("ternary", Layouts("ternary").wants(LOOKUP).data)


def test_methods_of_a_program_run_in_threads():
    """A method for each thread, of one program and of programs of their own."""
    (x,) = MODELS["sizes"][1]["forward"][0]
    first = load("sizes")
    want = first.execute([x])[0].clone()
    program, _ = first.kept
    failures = []

    def work(method):
        for _ in range(50):
            if not torch.allclose(method.execute([x])[0], want, atol=1e-5):
                failures.append(method)

    methods = [program.load_method("forward") for _ in range(3)]
    methods += [load("sizes") for _ in range(3)]
    threads = [threading.Thread(target=work, args=(m,)) for m in methods]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
