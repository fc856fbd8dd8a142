"""What the chat page takes from the tokens per second of the model that it shows.

    python benchmarks/page_cost.py [MODEL.gguf] [--tokens 400] [--rounds 7] [--threads 1]

A server writes the same answer for a plain client, which reads the stream and does nothing with
it, and for the page in Chromium (Debian: chromium), which draws it. Both take turns on the same
machine, and the browser is open all the time. Speeds are the server's own (`timings`), of the
tokens behind the first; the median of the rounds counts. `cpu` is the processor time of the server
for each token, which a loaded machine does not change.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page, sync_playwright

DEMO = Path(__file__).parents[1] / "examples/weft-demo.gguf"
PROMPT = "What is 17 + 25?"
NAMES = ("chromium", "chromium-browser", "google-chrome")


def started(args: argparse.Namespace) -> tuple[subprocess.Popen[str], str]:
    """A server and its address."""
    command = [sys.executable, "-m", "weft", "serve", str(args.model), "--port", "0", "--parallel"]
    command += ["1", "--threads", str(args.threads)]
    command += ["--ctx-size", str(args.ctx_size)] if args.ctx_size else []
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    for line in server.stderr:
        if " at http://" in line:
            return server, line.split(" at ")[1].split(";")[0].strip().removesuffix("/v1")
    raise SystemExit("the server did not start")


def settings(args: argparse.Namespace) -> dict[str, Any]:
    return {"max_tokens": args.tokens, "temperature": 0, "ignore_eos": True}


def plain(url: str, args: argparse.Namespace) -> float:
    """Tokens per second with a client that only reads."""
    body = settings(args) | {
        "messages": [{"role": "user", "content": PROMPT}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "timings_per_token": True,
    }
    connection = HTTPConnection(urlsplit(url).netloc)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    speed = 0.0
    for line in connection.getresponse():
        if b'"timings"' in line:
            speed = json.loads(line.removeprefix(b"data: "))["timings"]["predicted_per_second"]
    connection.close()
    return speed


def page_settings(page: Page, args: argparse.Namespace) -> None:
    kept = {"max_tokens": str(args.tokens), "temperature": "0", "ignore_eos": True}
    page.evaluate("text => localStorage.setItem('weft-settings', text)", json.dumps(kept))
    page.reload()
    page.wait_for_selector("html[data-ready]")


def shown(page: Page) -> float:
    """Tokens per second with the page, in a new conversation."""
    page.click("#new")
    page.fill("#input", PROMPT)
    page.press("#input", "Enter")
    page.wait_for_selector(".message.assistant.writing", state="attached")
    page.wait_for_selector(".message.assistant:not(.writing)", timeout=600_000)
    page.wait_for_timeout(300)
    speed = page.evaluate(
        """async () => {
          const { list, load } = await import("/page/js/store.js");
          const { nodes } = await load((await list())[0].id);
          return Object.values(nodes).find((node) => node.role === "assistant").stats.speed;
        }"""
    )
    return float(speed)


def cpu(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def browser_cpu(server: int) -> float:
    """Processor seconds of the browser, whose driver is a child of this process."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(folder.name))
    total, rest = 0.0, [pid for pid in children.get(os.getpid(), ()) if pid != server]
    while rest:
        pid = rest.pop()
        rest += children.get(pid, ())
        try:
            name = Path(f"/proc/{pid}/comm").read_text()
            total += cpu(pid) if name.startswith(("chrom", "google")) else 0.0
        except OSError:
            continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, default=DEMO)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ctx-size", type=int, default=0)
    args = parser.parse_args()
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise SystemExit("there is no Chromium (Debian: chromium)")
    server, url = started(args)
    speeds: dict[str, list[float]] = {"plain client": [], "page": []}
    times: dict[str, list[float]] = {"plain client": [], "page": []}
    drawing: list[float] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url)
        page.wait_for_selector("html[data-ready]")
        page_settings(page, args)
        for number in range(args.rounds + 1):
            for name in speeds if number % 2 else reversed(list(speeds)):
                before, drawn = cpu(server.pid), browser_cpu(server.pid)
                speed = plain(url, args) if name == "plain client" else shown(page)
                if number:  # the first round warms up
                    speeds[name].append(speed)
                    times[name].append((cpu(server.pid) - before) / args.tokens * 1e3)
                if number and name == "page":
                    drawing.append((browser_cpu(server.pid) - drawn) / args.tokens * 1e3)
        browser.close()
    server.terminate()
    server.wait()
    print(f"{args.model.name}, {args.tokens} tokens, {args.threads} threads, {args.rounds} rounds")
    for name, rows in speeds.items():
        spread = f"{min(rows):.1f} to {max(rows):.1f}"
        time = statistics.median(times[name])
        print(f"{name:13} {statistics.median(rows):8.1f} tokens/s ({spread}), cpu {time:.2f} ms")
    print(f"the browser's own processor time: {statistics.median(drawing):.2f} ms a token")
    ratios = [b / a for a, b in zip(speeds["plain client"], speeds["page"], strict=True)]
    print(f"page / plain client: {statistics.median(ratios):.3f} (median of the rounds)")


if __name__ == "__main__":
    main()
