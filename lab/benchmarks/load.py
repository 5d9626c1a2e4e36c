"""The service under load: latency, pairs a second beside the scorer alone, deadlines, memory, and kills.

    python lab/benchmarks/load.py [--seconds 600] [--clients 1 8 64] [--methods auto rerank] [--requests 100000] [--kills 20] [--out FILE]

`crossknn serve` runs over the sample (11,587 meanings of nouns) with the bundled models, in a process of its own.
Each client sends the next search when it has its answer: a sentence of the sample with a number of its own, so that
no score is stored yet. The scorer alone gets the pairs of such searches at once, before and after each load; beside
wall-clock rates there are those of CPU time, as other work on the machine slows both. Memory and kills use a scorer
that costs nothing, over 200 items: the resident memory over so many searches, and after a kill -9 whether each exact
score that a client was told is in the store. Rows of other methods and numbers of clients stay in FILE.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import urllib3

import crossknn as ck
from crossknn.linalg import available_threads
from crossknn.types import Pairs

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_MS = 500
NUMBERS = itertools.count()
SAMPLE = ck.sample()


def cheap(pairs: list[tuple[str, str]]) -> list[float]:
    """Scores that cost nothing."""
    return [len({*query} & {*text}) + len(text) / 99 for query, text in pairs]


def serve_cheap(folder: Path, port: int) -> None:
    """The service with a scorer that costs nothing; in a process of its own."""
    from crossknn.service.app import serve
    from crossknn.service.connections import listening
    from crossknn.service.engine import Engine

    engine = Engine({"docs": ck.ItemIndex.load(folder)}, ck.CallableScorer(cheap, "cheap"))
    with listening("127.0.0.1", port) as sockets:
        serve(engine, sockets)


@contextmanager
def service(start: Callable[[int], Any]) -> Iterator[tuple[str, psutil.Process]]:
    """A service that is ready, its address and its process; ended, if it is not by then."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = psutil.Process(start(port).pid)
    url = f"http://127.0.0.1:{port}"
    try:
        tries = urllib3.Retry(total=None, connect=200, backoff_factor=0.1, backoff_max=0.3)
        urllib3.request("GET", f"{url}/readyz", retries=tries)
        yield url, process
    finally:
        if process.is_running():
            process.kill()


class Clients:
    """So many clients, each asking again when it is answered; `answers` are (seconds, answer)."""

    def __init__(self, url: str, count: int, **options: Any) -> None:
        self.options = options
        pool = urllib3.PoolManager(maxsize=count, retries=False)
        self.post = partial(pool.request, "POST", f"{url}/search")
        self.answers: list[tuple[float, dict[str, Any]]] = []
        self.stopped, self.refused = threading.Event(), 0
        self.threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def _ask(self) -> None:
        while not self.stopped.is_set():
            number = next(NUMBERS)
            query = f"{SAMPLE.queries.texts[number % len(SAMPLE.queries)]} ({number})"
            began = time.perf_counter()
            try:
                answer = self.post(json={"query": query, **self.options})
            except urllib3.exceptions.HTTPError:
                return  # the service was killed
            if answer.status == 429:
                self.refused += 1
                time.sleep(1)  # Retry-After
                continue
            assert answer.status == 200, answer.data
            self.answers.append((time.perf_counter() - began, answer.json()))

    def stop(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join()


def alone(pairs: list[tuple[str, str]]) -> tuple[float, float]:
    """Pairs a second of the bundled cross-encoder, of wall-clock and of CPU time."""
    queries, items = zip(*pairs, strict=True)
    scorer, each = ck.CrossEncoder(), np.arange(len(pairs))
    began, cpu = time.perf_counter(), time.process_time()
    for _ in scorer.score(Pairs(each, each), queries, items):
        pass
    return len(pairs) / (time.perf_counter() - began), len(pairs) / (time.process_time() - cpu)


def pairs_of(answers: list[tuple[float, dict[str, Any]]]) -> list[tuple[str, str]]:
    """The pairs that searches with explanations have scored."""
    texts = dict(zip(SAMPLE.index.items.ids, SAMPLE.index.items.texts, strict=True))
    found = [result for _, answer in answers for result in answer["results"]]
    return [(result["query"], texts[pick["id"]]) for result in found for pick in result["trace"]]


def spent(url: str, process: psutil.Process) -> tuple[float, float]:
    """Pairs that the service has scored so far, and the CPU seconds that it took."""
    said = urllib3.request("GET", f"{url}/metrics").data.decode()
    calls = next(line for line in said.splitlines() if line.startswith("crossknn_calls_total"))
    return float(calls.split()[1]), sum(process.cpu_times()[:2])


def load(
    seconds: float, methods: list[str], counts: list[int], work: Path
) -> Iterator[dict[str, Any]]:
    """Rows of a number of clients each, without a deadline and with one."""
    SAMPLE.index.save(work / "docs")
    offers = [word for method in methods for word in ("--offer", method)]
    serve = f"{sys.executable} -m crossknn serve {work / 'docs'} --deadline 300s"
    command = [*serve.split(), *offers, "--port"]
    start = lambda port: subprocess.Popen([*command, str(port)], stderr=subprocess.DEVNULL)  # noqa: E731
    with service(start) as (url, process):
        some = Clients(url, 1, budget=100, explain=True)
        while len(some.answers) < 8:
            time.sleep(0.1)
        some.stop()
        pairs = pairs_of(some.answers)
        for method, count in itertools.product(methods, counts):
            before = alone(pairs)
            clients = Clients(url, count, budget=100, method=method)
            time.sleep(min(seconds / 10, 20))
            calls, cpu = spent(url, process)
            first, began = len(clients.answers), time.perf_counter()
            time.sleep(seconds)
            took = time.perf_counter() - began
            took_ms = [1000 * each for each, _ in clients.answers[first:]]
            after, cpu_after = spent(url, process)
            clients.stop()
            rates = np.mean([before, alone(pairs)], axis=0)
            own = (after - calls) / np.array([took, cpu_after - cpu])
            hurried = Clients(url, count, budget=400, deadline_ms=DEADLINE_MS, method=method)
            time.sleep(min(seconds / 4, 60))
            hurried.stop()
            late = [1000 * each - DEADLINE_MS for each, _ in hurried.answers]
            until = [answer["n_calls"] for _, answer in hurried.answers]
            row = {
                "method": method,
                "clients": count,
                "seconds": seconds,
                "searches": len(took_ms),
                "p50, p99 ms": np.percentile(took_ms, [50, 99]).round(1).tolist(),
                "pairs a second": round(float(own[0]), 1),
                "scorer alone": round(float(rates[0]), 1),
                "share": round(float(own[0] / rates[0]), 3),
                "share of CPU time": round(float(own[1] / rates[1]), 3),
                "with a deadline: answered, refused": [len(late), hurried.refused],
                "late at p99, ms": round(float(np.percentile(late, 99)), 1),
                "calls until the deadline": float(np.median(until)),
                "load of the machine": os.getloadavg()[0],
            }
            print(json.dumps(row), flush=True)
            yield row


def memory(requests: int, folder: Path) -> dict[str, Any]:
    """Resident memory of the service, in MB, after so many searches."""
    curve = {}
    with service(lambda port: started(folder, port)) as (url, process):
        clients = Clients(url, 8, budget=10)
        for at in np.linspace(0, requests, 21).astype(int).tolist()[1:]:
            while len(clients.answers) < at:
                time.sleep(0.05)
            curve[at] = round(process.memory_info().rss / 2**20, 1)
        clients.stop()
    return {"requests": requests, "MB": curve}


def started(folder: Path, port: int) -> Any:
    process = get_context("spawn").Process(target=serve_cheap, args=(folder, port))
    process.start()
    return process


def kill(seed: int, folder: Path) -> dict[str, int]:
    """Kill the service under load; the exact scores that clients were told, and those the store lacks."""
    with service(lambda port: started(folder, port)) as (url, process):
        clients = Clients(url, 8, budget=10, explain=True)
        time.sleep(float(np.random.default_rng([8, seed]).uniform(0.5, 2)))
        process.send_signal(signal.SIGKILL)
        clients.stop()
    index, scorer = ck.ItemIndex.load(folder), ck.CallableScorer(cheap, "cheap")
    told = lost = 0
    for result in (result for _, answer in clients.answers for result in answer["results"]):
        items = [index.items.texts[index.items.position(pick["id"])] for pick in result["trace"]]
        [kept] = index.scores.rows(scorer.fingerprint, [result["query"]], items)
        told += len(items)
        lost += int((kept != np.float32([pick["score"] for pick in result["trace"]])).sum())
    return {"told": told, "lost": lost, "damaged": len(index.scores.verify())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--methods", nargs="*", default=["auto", "rerank"])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/load.json")
    options = parser.parse_args()
    made = json.loads(options.out.read_text()) if options.out.exists() else {}
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True)
    stamp = {
        "date": date.today().isoformat(),
        "commit": commit.strip(),
        "cores": available_threads(),
    }
    with tempfile.TemporaryDirectory() as work:
        small = Path(work) / "small"
        texts = [f"{n} {text}" for n, text in enumerate(SAMPLE.index.items.texts[:200])]
        ck.ItemIndex.build(texts, lsa=16).save(small)
        if options.clients:
            rows = {(row["method"], row["clients"]): row for row in made.get("load", [])}
            for row in load(options.seconds, options.methods, options.clients, Path(work)):
                rows[row["method"], row["clients"]] = stamp | row
                made["load"] = [rows[key] for key in sorted(rows)]
                options.out.write_text(json.dumps(made, indent=1) + "\n")
        if options.requests:
            made["memory"] = stamp | memory(options.requests, small)
        if options.kills:
            kills = [kill(seed, small) for seed in range(options.kills)]
            sums = {k: sum(each[k] for each in kills) for k in kills[0]}
            made["kills"] = stamp | {"kills": len(kills)} | sums
    options.out.write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps({k: v for k, v in made.items() if k != "load"}))


if __name__ == "__main__":
    main()
