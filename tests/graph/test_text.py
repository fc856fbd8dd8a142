"""A graph survives its text; damaged text is a GraphError with a line number."""

import random
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import graph as g
from weft.errors import GraphError
from weft.graph import Buffer, Graph, Sym, Tensor, format_graph, parse_graph
from weft.graph.ops import RopeParams

N = Sym("n_tokens", 1, 512)


def sample() -> Graph:
    """A bit of everything: symbols, constants, views, parameters, holes, in-place, a cast."""
    x = g.input("x", [N, 64])
    pos = g.input("pos", [N], "i32")
    w = g.constant(np.zeros((32, 36), np.uint8), "w", "q4_0")
    cache = g.leaf("f16", [64, 1024], 'cache "k"', buffer=Buffer("any", offset=64))
    h = g.mul_mat(w, g.rms_norm(x, 1e-5))
    q = g.rope(g.reshape(h, 8, 4, N.size), pos, mode="neox", n_dims=8, freq_base=5e5)
    sink = g.constant(np.zeros(4, np.float32), "sinks")
    s = g.soft_max(g.cont(g.permute(q, 0, 2, 1, 3)), None, sink, 0.125)
    last = g.view_1d(x, 64, (N.size - 1) * x.nb[1])
    rows = g.set_rows(cache, x, g.input("rows", [N], "i64"))
    half = g.cast(g.pool_1d(x, "avg", 2, 2), "f16")
    shifted = g.roll(x, (-1, 0)).as_output("shifted")
    clamped = g.clamp(g.scale(x, 0.1, inplace=True), float("-inf"), 6.0)
    sinks = [s, last, rows, half, clamped]
    return Graph(*(t.as_output(f"out{i}") for i, t in enumerate(sinks)), shifted)


SAMPLE_TEXT = """\
weft graph 1
sym n_tokens 1..512
%0 = constant q4_0[64, 32] "w"
%1 = input f32[64, n_tokens] "x"
%2 = RMS_NORM(%1) {eps=1e-05} f32[64, n_tokens] "node_0"
%3 = MUL_MAT(%0, %2) f32[32, n_tokens] "node_1"
%4 = VIEW(%3) f32[32] "last" nb=[4, 128, 128, 128] view=%3+128*n_tokens-128 flags=output
"""


def same(a: Graph, b: Graph) -> None:
    ids = ({t: i for i, t in enumerate(a.tensors)}, {t: i for i, t in enumerate(b.tensors)})

    def facts(t: Tensor, ids: dict[Tensor, int]) -> list[object]:
        buffer = (t.buffer.usage, t.buffer.offset) if t.buffer else None
        view = None if t.view_src is None else ids.get(t.view_src, "outside")
        sources = [None if s is None else ids[s] for s in t.src]
        head = [t.name, t.dtype, t.op, t.params, t.ne, t.nb, t.view_offs, t.flags]
        return [*head, buffer, view, sources]

    assert [facts(t, ids[0]) for t in a.leaves] == [facts(t, ids[1]) for t in b.leaves]
    assert [facts(t, ids[0]) for t in a.nodes] == [facts(t, ids[1]) for t in b.nodes]


def test_round_trip() -> None:
    graph = sample()
    text = format_graph(graph)
    again = parse_graph(text)
    same(graph, again)
    assert format_graph(again) == text


def test_text_is_what_the_documentation_shows() -> None:
    x = g.input("x", [N, 64])
    w = g.constant(np.zeros((32, 36), np.uint8), "w", "q4_0")
    h = g.mul_mat(w, g.rms_norm(x, 1e-5))
    last = g.view_1d(h, 32, (N.size - 1) * h.nb[1]).as_output("last")
    assert format_graph(Graph(last)) == SAMPLE_TEXT.replace(" nb=[4, 128, 128, 128]", "")
    same(parse_graph(SAMPLE_TEXT), Graph(last))


def test_bases_outside_the_graph_are_kept() -> None:
    base = g.leaf("f32", [8], "base", buffer=Buffer("any"))
    view = Tensor(base.dtype, (4, 1, 1, 1), name="v", view_src=base, view_offs=16)
    graph = Graph(g.silu(view))
    again = parse_graph(format_graph(graph))
    same(graph, again)
    assert again.leaves[0].view_src is not None and again.leaves[0].view_src not in again


def test_comments_and_empty_lines_are_skipped() -> None:
    header, rest = SAMPLE_TEXT.split("\n", 1)
    same(parse_graph(f"{header}\n\n# a comment\n{rest}"), parse_graph(SAMPLE_TEXT))


floats = st.floats(width=32, allow_nan=False) | st.floats(allow_nan=False, allow_infinity=False)


@given(floats, floats, st.integers(-5, 5), st.tuples(*[st.integers(0, 99)] * 4))
def test_any_parameter_value_survives(
    base: float, scale: float, offset: int, sections: tuple[int, int, int, int]
) -> None:
    params = RopeParams(
        g.RopeMode.IMROPE, 2, freq_base=base, freq_scale=scale, n_offset=offset, sections=sections
    )
    x = g.input("x", [1, 1, 2])
    node = g.rope(x, g.input("pos", [1], "i32"), mode="neox", n_dims=2)
    node.params = params
    back = parse_graph(format_graph(Graph(node))).nodes[0].params
    assert [getattr(back, f.name) for f in fields(params)] == [
        getattr(params, f.name) for f in fields(params)
    ]


@given(st.text(max_size=40))
def test_any_name_survives(name: str) -> None:
    graph = Graph(g.silu(g.leaf("f32", [2], name or "x")))
    same(graph, parse_graph(format_graph(graph)))


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("weft graph 1", "weft graph 9", "must start with the line"),
        ("sym n_tokens 1..512\n", "", "line 3: .*no sym line declares"),
        ("1..512", "512..1", "line 2: .*bounds"),
        ("1..512", "1", "line 2: .*min..max"),
        ("%1 =", "%0 =", "line 4: defines %0 again"),
        ("RMS_NORM(%1)", "RMS_NORM(%7)", "line 5: uses %7 before its line"),
        ("RMS_NORM", "RMS_NURM", "line 5: unknown op"),
        ("q4_0", "q4_9", "line 3: unknown type"),
        ("{eps=1e-05}", "{esp=1e-05}", "line 5: .*'esp'"),
        ("{eps=1e-05}", "{}", "line 5: .*eps"),
        ("{eps=1e-05}", "", "line 5: "),
        ("%0, %2", "%0", "has 1 sources"),
        ("[64, 32]", "[64, 32", "line 3"),
        ("[64, 32]", "[33, 32]", "not whole blocks"),
        ("[64, 32]", "[64, 1, 1, 1, 32]", "5 sizes"),
        ("flags=output", "flags=hot", "unknown flags"),
        ("flags=output", "colour=red", "unknown field 'colour'"),
        ("+128*n_tokens-128", "+128*n_tokens", "ends at byte"),
        ("+128*n_tokens-128", "+128*(n_tokens-1)/1", "unknown characters '/1"),
        ("+128*n_tokens-128", "+div(n_tokens, 0)", "divides by zero"),
        ("+128*n_tokens-128", "+div(1, 0)", "line 7"),
        ("+128*n_tokens-128", "+" + "(" * 5000 + "0" + ")" * 5000, "line 7: .*64 levels deep"),
        ("+128*n_tokens-128", "+" + "max(0," * 65 + "0" + ")" * 65, "line 7: .*64 levels deep"),
        ('"w"', '"w', "line 3"),
        ('"w"', '"\\q"', "line 3"),
    ],
)
def test_damaged_text_is_refused(old: str, new: str, match: str) -> None:
    assert old in SAMPLE_TEXT
    with pytest.raises(GraphError, match=match):
        parse_graph(SAMPLE_TEXT.replace(old, new, 1))


def test_brackets_side_by_side_are_not_deep() -> None:
    offset = "+" + "+".join(["0*" + "(" * 64 + "n_tokens" + ")" * 64] * 3) + "+128*n_tokens-128"
    text = SAMPLE_TEXT.replace("+128*n_tokens-128", offset, 1)
    assert format_graph(parse_graph(text)) == format_graph(parse_graph(SAMPLE_TEXT))


def test_random_damage_never_escapes_as_another_error() -> None:
    rng = random.Random(7)
    text = format_graph(sample())
    for _ in range(400):
        at, n = rng.randrange(len(text)), rng.randrange(1, 6)
        damaged = text[:at] + "".join(rng.choices('0123%[](){}=,"*+-nqf', k=n)) + text[at + n :]
        try:
            parse_graph(damaged)
        except GraphError:
            pass


def test_print_shows_the_graph_and_repr_is_a_line() -> None:
    h = g.input("x", (8,))
    graph = Graph(g.scale(h, 2.0).as_output("y"))
    assert str(graph) + "\n" == format_graph(graph)
    assert repr(graph) == "<Graph x f32 (8) -> y f32 (8); 1 nodes, 1 leaves>"
    for _ in range(500):
        h = g.scale(h, 2.0)
    lines = str(Graph(h.as_output("y"))).splitlines()
    assert len(lines) == 201 and lines[-1].startswith("%500 = SCALE(%499)")
    assert lines[100].startswith("# 302 more lines; weft.graph.text.format_graph(graph)")
