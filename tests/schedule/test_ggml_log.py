"""What llama.cpp prints, beside a plan: the log of a run of the demo model on two devices
(llama.cpp of ggml 0.25 with causes compiled in), and lines of older and newer spellings."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import weft as command
from tests.report.test_timeline import MODEL, page_data
from weft import bounds
from weft.errors import FormatError
from weft.report import diff_data, page_html
from weft.schedule import ggml_log
from weft.schedule.alignment import aligned
from weft.schedule.diff import diff
from weft.schedule.ggml_log import read_log

LOG = Path(__file__).parents[1] / "data/ggml/two-devices.log"
TEXT = LOG.read_text(encoding="utf-8")
REMOTE = "RPC0[127.0.0.1:50952]"


def logged(text: str = TEXT, number: int | None = None) -> dict[str, Any]:
    log = read_log(text.encode())
    return log.plan(log.main() if number is None else number)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    done = command(
        "explain", str(MODEL), "-c", "256", "--devices", "reference,cpu", "-ngl", "1", "-t", "1",
        "--save", str(path),
    )  # fmt: skip
    assert done.returncode == 0
    return path


@pytest.fixture(scope="module")
def plan(plan_file: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(plan_file.read_text())
    return data


def nodes(plan: Any) -> list[Any]:
    return [node for split in plan["splits"] for node in split["nodes"]]


# **** reading ****


def test_what_a_log_says() -> None:
    log = read_log(TEXT.encode())
    assert [(graph.tokens, graph.outputs) for graph in log.graphs] == [(1, 1), (256, 256),
                                                                       (None, None)]  # fmt: skip
    assert (log.main(), log.smallest()) == (1, 0)
    assert log.counts == {"nodes": (161, 161), "splits": (2, 2)}
    assert log.settings == {
        "file": "models/weft-demo.gguf", "n_gpu_layers": 2, "n_seq_max": 1, "n_ctx": 256,
        "n_ubatch": 256, "flash": True, "type_k": "f16", "type_v": "f16",
    }  # fmt: skip
    mib = 1 << 20
    assert log.buffers["compute", REMOTE] == round(1.5 * mib)
    assert log.buffers["weights", "CPU_Mapped"] == round(0.86 * mib)
    assert log.buffers["cache", "CPU"] == round(0.25 * mib)
    plan = log.plan(1)
    assert plan["totals"] == {"splits": 2, "nodes": 101, "copies": 7, "copied_bytes": 399360}
    assert [d["name"] for d in plan["devices"]] == ["CPU", REMOTE]
    assert plan["max_tokens"] == 256 and plan["options"]["n_outputs"] == 256
    first, second = plan["splits"]
    assert first["inputs"] == [] and len(second["inputs"]) == 7
    assert second["inputs"][0] == {
        "name": "ffn_out-3", "from": "CPU", "bytes": 128 << 10, "rounded": 1024
    }  # fmt: skip
    query = nodes(plan)[3]
    assert (query["name"], query["op"], query["device"]) == ("Qcur-0", "MUL_MAT", "CPU")
    assert query["cause"] == "1.wgt0" and query["why"] == "weight blk.0.attn_q.weight lives there"
    assert {node["device"] for node in second["nodes"]} == {REMOTE}  # cut to RPC0[ in their lines


@pytest.mark.parametrize(
    ("line", "buffers", "counts"),
    [
        ("llm_load_tensors:        CPU buffer size =  1640.62 MiB",
         {("weights", "CPU"): 1640.62}, {}),
        ("load_tensors:  CUDA0_Split model buffer size =   248.62 MiB",
         {("weights", "CUDA0_Split"): 248.62}, {}),
        ("llama_kv_cache_init:      CUDA0 KV buffer size =  1536.00 MiB",
         {("cache", "CUDA0"): 1536.0}, {}),
        ("llama_memory_recurrent:      CUDA0 RS buffer size =    12.50 MiB",
         {("cache", "CUDA0"): 12.5}, {}),
        ("llama_new_context_with_model:  CUDA_Host  output buffer size =     1.95 MiB",
         {("output", "CUDA_Host"): 1.95}, {}),
        ("llama_context:    Vulkan0 compute buffer size =   985.20 MiB",
         {("compute", "Vulkan0"): 985.2}, {}),
        ("sched_reserve:      Metal compute buffer size =    16.00 MiB",
         {("compute", "Metal"): 16.0}, {}),
        ("0.00.046.246 I llama_init_from_model:      Metal compute buffer size =    16.00 MiB",
         {("compute", "Metal"): 16.0}, {}),
        ("Sep 11 01:16:15 box ollama[1884]: llama_context:  CPU compute buffer size = 2.51 MiB",
         {("compute", "CPU"): 2.51}, {}),
        ("llama_context: graph nodes  = 429", {}, {"nodes": (429, 429)}),
        ("llama_context: graph splits = 171 (with bs=512), 4 (with bs=1)", {},
         {"splits": (171, 4)}),
        ("sched_reserve: graph (pp bs=512, tg bs=1): nodes = 936 / 930, splits = 3 / 2, input "
         "objects = 4, input tensors = 6", {}, {"nodes": (936, 930), "splits": (3, 2)}),
    ],
)  # fmt: skip
def test_spellings(line: str, buffers: dict[Any, float], counts: dict[Any, Any]) -> None:
    log = read_log(line.encode())
    assert log.buffers == {key: round(size * (1 << 20)) for key, size in buffers.items()}
    assert log.counts == counts and log.main() is None and log.plan(None)["splits"] == []


def stamped(text: str) -> str:
    """Each piece with a time and a level, and in colours."""
    text = re.sub(r"(?m)^(?=node #|## SPLIT|\w+: )", "\x1b[36m0.01.113.212 D \x1b[0m", text)
    return re.sub(r"(?<=\]) (?=\S)", " 0.01.113.215 D ", text)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.encode("utf-16"),  # as PowerShell redirects
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: re.sub("(?m)^(?=.)", "Nov 29 08:16:15 box llama[18]: ", text).encode(),
        lambda text: stamped(text).encode(),
        lambda text: re.sub(r" use=\d+,c=\d:", ":", text).encode(),  # as older ones
    ],
    ids=["utf-16", "crlf", "mark", "journal", "stamped", "older"],
)
def test_shapes_of_logs(change: Any) -> None:
    log = read_log(change(TEXT))
    assert log.plan(log.main()) == logged()


# **** beside a plan ****


def test_every_node_is_found(plan: dict[str, Any]) -> None:
    one, two = aligned(logged(), plan)
    assert len(nodes(one)) == len(nodes(two)) == 101  # without views
    assert {node["match"] for node in nodes(one)} == set(range(101))
    by_match = {node["match"]: node for node in nodes(two)}
    for node in nodes(one):
        ours = by_match[node["match"]]
        assert ours["name"] == node["name"] and ours["op"] == node["op"]
        if node["cause"].startswith("1.wgt"):
            weight = re.search(r"weight (\S+)", ours["why"])
            assert weight is not None and ours["cause"] == node["cause"]


def test_names_are_looked_at_before_order(plan: dict[str, Any]) -> None:
    """llama.cpp makes values before keys, weft keys before values."""
    one, _ = aligned(logged(), plan)
    values = next(n for n in nodes(one) if "attn_v" in n["why"])
    assert "Vcur-0" in values["name"]


def test_differences(plan: dict[str, Any]) -> None:
    lines = diff(logged(), plan).splitlines()
    # llama.cpp counts the output layer among the offloaded ones
    assert "layers on a device: 2 layers -> 1 layer" in lines
    assert "n_outputs: 256 rows -> 31 rows" in lines
    assert ("logits: reference -> cpu (1.wgt0: weight token_embd.weight lives in CPU memory)"
            in lines)  # fmt: skip
    assert "moved: 2 nodes from reference to cpu" in lines and "splits: 2 -> 3" in lines
    assert "- copy of attn_inp_v_idxs from cpu to reference (at least 2 KiB)" in lines
    assert "copy of out_ids from cpu to reference: at least 1 KiB -> 124 B" in lines
    assert not any("positions" in line or "mask" in line for line in lines)  # the same bytes
    assert not any("cache" in line for line in lines)  # 0.25 and 0.06 MiB on both sides
    compute = lines.index("compute in cpu memory: 1.76 MiB -> 1.10 MiB")
    assert re.fullmatch("  for the plan's graph, ggml's allocator takes .* MiB",
                        lines[compute + 1])  # fmt: skip


def test_the_other_order(plan: dict[str, Any]) -> None:
    lines = diff(plan, logged()).splitlines()
    assert ("logits: cpu (1.wgt0: weight token_embd.weight lives in CPU memory) -> reference"
            in lines)  # fmt: skip
    assert "n_outputs: 31 rows -> 256 rows" in lines and "splits: 3 -> 2" in lines


def test_causes(plan: dict[str, Any]) -> None:
    """A node that stayed for another cause; without causes in the log none is told."""
    text = TEXT.replace("norm-2 ( 128K) [  CPU    2.sup]", "norm-2 ( 128K) [  CPU      usr]")
    lines = diff(logged(text), plan).splitlines()
    (line,) = [line for line in lines if "usr" in line]
    assert line.endswith("cpu, usr: assigned by the user -> 2.sup: a neighbour is there, and the "
                         "device runs it")  # fmt: skip
    silent = re.sub(r"(?<=\[.....) .{8}\]", " " * 9 + "]", TEXT)
    assert not any(node["cause"] for node in nodes(logged(silent)))
    theirs, ours = diff(logged(silent), plan), diff(logged(), plan)
    assert "usr" not in theirs and theirs.count("logits: reference -> cpu (1.wgt0: weight") == 1
    assert len(theirs.splitlines()) == len(ours.splitlines())


def test_a_log_beside_itself_and_others() -> None:
    assert diff(logged(), logged()) == ""
    other = logged(TEXT.replace(REMOTE, "CUDA0").replace("RPC0[", "CUDA0"))
    assert diff(logged(), other) == ""  # another name for the same device
    lines = diff(logged(), logged(number=0)).splitlines()
    assert "n_outputs: 256 rows -> 1 row" in lines
    assert ("copy of ffn_out-3 from CPU to RPC0[127.0.0.1:50952]: at least 128 KiB -> under 1 KiB"
            in lines)  # fmt: skip


@pytest.mark.parametrize(
    ("theirs", "ours", "pairs"),
    [
        (["CPU", "CUDA0"], ["cuda:0", "cpu"], {"CUDA0": "cuda:0", "CPU": "cpu"}),
        (["CUDA1", "CUDA0", "CPU"], ["cuda:0", "cuda:1", "cpu"],
         {"CUDA0": "cuda:0", "CUDA1": "cuda:1", "CPU": "cpu"}),
        (["CUDA1", "CPU"], ["cuda:0", "cuda:1", "cpu"], {"CUDA1": "cuda:1", "CPU": "cpu"}),
        (["Metal", "CPU"], ["gpu", "cpu"], {"Metal": "gpu", "CPU": "cpu"}),
        (["BLAS", "CPU"], ["gpu", "cpu"], {"CPU": "cpu"}),
        (["BLAS", "CPU"], ["blas", "cpu"], {"BLAS": "blas", "CPU": "cpu"}),
        (["CPU"], ["gpu", "cpu"], {"CPU": "cpu"}),
        (["CUDA0", "CPU"], ["cpu"], {"CPU": "cpu"}),
    ],
)  # fmt: skip
def test_devices(theirs: list[str], ours: list[str], pairs: dict[str, str]) -> None:
    lines = (f"## SPLIT #{i}: {name} # 0 inputs" for i, name in enumerate(theirs))
    plan = {
        "format": "weft-plan-1", "splits": [], "max_tokens": 1, "options": {},
        "devices": [{"name": name, "kind": "GPU", "memory": name} for name in ours],
        "totals": {"splits": 0, "nodes": 0, "copies": 0, "copied_bytes": 0},
    }  # fmt: skip
    one, _ = aligned(logged("\n".join(lines)), plan)
    assert one["names"] == pairs


def test_cut_names_are_told_apart(plan: dict[str, Any]) -> None:
    """A line of a node has 20 characters of its name, so that layers look alike; the copies of a
    split are of the last node before it."""
    text = re.sub(r" {12,13}ffn_out-\d", " ffn_mixture_output_o", TEXT)
    text = text.replace("[ffn_out-3 (", "[ffn_mixture_output_of-3 (")
    assert text.count("ffn_mixture_output_o") > 10 and "ffn_out-3" not in text

    def copies(lines: str) -> list[str]:
        return [line for line in lines.splitlines() if "copy of" in line]

    assert copies(diff(logged(text), plan)) == copies(diff(logged(), plan))


def test_inputs_have_other_names(plan: dict[str, Any]) -> None:
    """A mask of another size is still the mask."""
    text = TEXT.replace("[attn_inp_kq_mask ( 128K)]", "[attn_inp_kq_mask (   2M)]")
    (line,) = [line for line in diff(logged(text), plan).splitlines() if "mask" in line]
    assert line.endswith("from cpu to reference: at least 2 MiB -> 128.00 KiB")


def test_only_splits_or_only_sizes(plan: dict[str, Any]) -> None:
    """GGML_SCHED_DEBUG=1 prints no nodes, a run without it sizes and counts alone."""
    splits = "\n".join(line for line in TEXT.splitlines() if not line.startswith("node #"))
    lines = diff(logged(splits), plan).splitlines()
    assert "splits: 2 -> 3" in lines and not any("logits" in line for line in lines)
    sizes = "\n".join(line for line in splits.splitlines() if "SPLIT" not in line)
    lines = diff(logged(sizes), plan).splitlines()
    assert "splits: 2 -> 3" in lines and "nodes: 161 -> 146" in lines
    assert "compute in cpu memory: 1.76 MiB -> 1.10 MiB" in lines
    assert not any(line.startswith(("+", "-")) or "copies" in line for line in lines)


def test_old_logs_do_not_say_what_is_reserved() -> None:
    text = "\n".join(line for line in TEXT.splitlines() if "reserving a graph" not in line)
    log = read_log(text.encode())
    assert [graph.tokens for graph in log.graphs] == [None] * 3
    assert log.main() == 1  # the widest tensors


# **** the command, the page ****


def test_the_command(plan_file: Path, tmp_path: Path) -> None:
    done = command("diff", str(LOG), str(plan_file))
    assert done.returncode == 1 and "logits: reference -> cpu" in done.stdout
    assert ("two-devices.log: a log of ggml, graph 2 of 3, reserved for 256 tokens; graph 1 of 3, "
            "reserved for 1 token") in " ".join(done.stderr.split())  # fmt: skip
    assert f"devices: CPU is cpu, {REMOTE} is reference" in done.stderr
    assert command("diff", str(LOG), str(LOG)).returncode == 0
    one = command("diff", str(plan_file), str(LOG), "--graph", "3")
    assert one.returncode == 1 and "graph 3 of 3\n" in one.stderr
    for number in ("0", "4", "-1"):
        missing = command("diff", str(plan_file), str(LOG), "--graph", number)
        assert missing.returncode == 2 and "the log has 3 graphs" in missing.stderr
    plans = command("diff", str(plan_file), str(plan_file), "--graph", "1")
    assert plans.returncode == 2 and "both files are plans" in plans.stderr
    other = tmp_path / "other.txt"
    other.write_text("nothing of ggml\n")
    nothing = command("diff", str(other), str(plan_file))
    assert nothing.returncode == 2 and "GGML_SCHED_DEBUG=2" in nothing.stderr


def test_the_page(plan_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "diff.html"
    done = command("diff", str(LOG), str(plan_file), "--html", str(out))
    assert done.returncode == 1 and "report written" in done.stderr
    data = page_data(out.read_text())
    assert data["names"] == ["two-devices.log", "plan.json"]
    assert ["n_outputs", "256 rows", "31 rows"] in data["options"]
    assert [d["name"] for d in data["devices"]] == ["reference", "cpu"]
    (pair,) = data["pairs"]
    assert {row["name"] for row in pair["copies"]} >= {"out_ids", "attn_inp_v_idxs"}
    assert [len(side["nodes"]["op"]) for side in pair["sides"]] == [101, 101]


# **** damaged and hostile logs ****


def test_a_log_may_begin_and_end_anywhere(plan: dict[str, Any]) -> None:
    lines = TEXT.splitlines()
    for start in range(0, len(lines), 37):
        for end in range(start + 5, len(lines), 61):
            try:
                log = read_log("\n".join(lines[start:end]).encode())
                diff(log.plan(log.main()), plan)
            except FormatError as error:
                assert "nor a log of ggml" in str(error)


def test_damaged_logs(plan: dict[str, Any]) -> None:
    draw = random.Random(7)
    data = bytearray(TEXT.encode())
    read = 0
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(draw.choice((3, 300, 6000))):
            damaged[draw.randrange(len(damaged))] = draw.choice(b"[]()#:0 \n\x1b\xff")
        try:
            log = read_log(bytes(damaged))
            number = log.main()
            page_html(diff_data(log.plan(number), plan))
            diff(plan, log.plan(number))
            read += 1
        except FormatError:
            pass
    assert read > 40


def test_control_characters_stay_out() -> None:
    text = TEXT.replace("ffn_out-3", "ffn\x1b]0;x\x07\u202e-3")
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", diff(logged(text), logged()))


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bounds.LOG_BYTES == 64 << 20 and bounds.LOG_NODES == 65536
    monkeypatch.setattr(ggml_log, "LOG_NODES", 100)
    with pytest.raises(FormatError, match="more than 100 nodes"):
        logged()
    monkeypatch.setattr(ggml_log, "LOG_BYTES", len(TEXT) // 2)
    log = read_log(TEXT.encode())
    assert log.shortened and len(log.graphs) == 2


@pytest.mark.parametrize(
    "line",
    [
        "## SPLIT #0: " + "x" * 200_000,
        "## SPLIT #0: CPU # 1 inputs: " + "[x ( " * 50_000,
        "node #  0 ( ADD): " + " (   1K) [ CPU " * 20_000,
        "node #  0 (       ADD): x (   1K) [  CPU    2.sup]:" + " x (" * 60_000,
        "graph (pp " + "(" * 200_000,
        "meta data " * 20_000 + " from x",
        "x: " * 60_000 + "buffer size = 1.00 MiB",
        " (with bs=" * 20_000,
    ],
)
def test_long_lines_take_linear_time(line: str) -> None:
    text = f"## SPLIT #0: CPU # 0 inputs\n{line}\n"
    start = time.process_time()
    log = read_log(text.encode())
    log.plan(log.main())
    assert time.process_time() - start < 2.0


def test_many_nodes_of_one_name_take_linear_time() -> None:
    row = "node #{:>3} (       ADD):                    x (   1K) [  CPU    2.sup]:"
    text = "## SPLIT #0: CPU # 0 inputs\n" + "\n".join(row.format(i) for i in range(20_000))
    start = time.process_time()
    assert diff(logged(text), logged(text)) == ""
    assert time.process_time() - start < 5.0
