"""Kill every writing command and damage every kind of file, many times; count what was lost.

    python lab/benchmarks/campaign.py [--kills 200] [--damages 2000] [--steps 1000] [--changes 400]
        [--lists 120] [--work FOLDER]

Kills: a command that scores with a counting endpoint is killed at a random moment and run again;
its answer must be that of an undisturbed run, and pairs that were asked twice must be those of the
requests in flight. Damages: a bit is flipped, a file truncated or a block zeroed, files drawn by
their bytes, every tenth time a score matrix; a search, or a replay, must answer as before or refuse
in one sentence. Steps: items are added, replaced, deleted, compacted and searched at random, 1,000 steps a
trial, beside a dictionary that must agree (`updates.py`). Changes: adding, replacing, deleting and compacting
are killed at each of their steps in turn; the index must be that of before or after. Lists: the
building of an approximate index is killed at a random moment; nothing may be lost. Trials are drawn
by number and kept in the folder, so that a stopped campaign goes on. Writes
benchmarks/results/campaign.json.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import updates

from crossknn.cli.app import run
from crossknn_lab.cli import app as lab

ROOT = Path(__file__).parents[2]
TOPICS = ("archives", "threads", "files", "strings", "queues")
TRIALS = {"kills": 200, "damages": 2000, "steps": 1000, "changes": 400, "lists": 120}
IN_FLIGHT = 8
"""Requests that the endpoint's scorer has under way at most."""

SEARCH = ("search", "d.index", "--queries", "queries.jsonl", "--k", "5", "--budget", "20")
SCORED = ("--scorer", "URL", "--endpoint-model", "m", "--json")
COMMANDS: dict[str, tuple[str, ...]] = {
    "build": ("index", "build", "docs.jsonl", "d.index", "--encoder", "none", "--lsa", "8"),
    "add": ("index", "prepare", "d.index", "--nearest", "--json"),
    "collect": ("collect", "d.index", "--anchors", "train.jsonl", "--workers", "2", *SCORED),
    "fit": ("fit", "d.index", "als", "--queries", "train.jsonl", "--per", "20", *SCORED),
    "search": (*SEARCH, "--method", "axn(retriever=bm25, rounds=4)", *SCORED),
    "compare": (
        *("compare", "d.index", "--queries", "queries.jsonl", "--budgets", "10", "-k", "1"),
        *("--methods", "rerank(retriever=bm25), axn(retriever=als)", *SCORED),
    ),
    "matrix": (
        *("collect-matrix", "d.index", "--queries", "queries.jsonl", "--out", "m.npz"),
        *SCORED,
    ),
}
"""The writing commands, each on what the ones before it have left."""
REPLAY = ("replay", "m.npz", "--methods", "axn(retriever=bm25, vectors=als)", "--budgets", "20")


class Endpoint(BaseHTTPRequestHandler):
    """Scores by the lengths of the texts, slowly, and remembers what it was asked."""

    requests: list[list[tuple[str, str]]]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = asked.get("documents") or asked.get("texts")
        self.requests.append([(asked["query"], text) for text in texts])
        time.sleep(0.02)
        marks = [enumerate(asked["query"] + text) for text in texts]  # a score by the pair alone
        scores = [float(sum(ord(a) * (i + 3) for i, a in mark) % 101) for mark in marks]
        found = [{"index": i, "relevance_score": score} for i, score in enumerate(scores)]
        body = json.dumps({"results": found}).encode()
        with contextlib.suppress(OSError):  # the client was killed
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Campaign:
    """A folder with a state before each command, what each says undisturbed, and the trials."""

    def __init__(self, work: Path, url: str) -> None:
        self.work, self.url = work, url
        self.expected: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        state = work / "states" / "build"
        shutil.rmtree(work / "states", ignore_errors=True)
        state.mkdir(parents=True)
        items = [{"id": f"d{i}", "text": f"part {i} on {TOPICS[i % 5]}"} for i in range(120)]
        for name, count in (("queries", 8), ("train", 12)):
            texts = (f"{name} {i} {TOPICS[i % 5]}" for i in range(count))
            rows = [{"id": f"{name}{i}", "text": text} for i, text in enumerate(texts)]
            (state / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (state / "docs.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
        for name, then in zip(COMMANDS, [*COMMANDS, "end"][1:], strict=True):
            after = work / "states" / then
            shutil.copytree(work / "states" / name, after)
            began = time.perf_counter()
            code, out, said = self.finish(name, after)
            self.seconds[name] = time.perf_counter() - began
            assert code == 0, (name, said)
            self.expected[name] = out
        with contextlib.chdir(after):
            self.expected["replay"] = quietly(REPLAY, lab)[1]

    def start(self, name: str, folder: Path) -> subprocess.Popen[str]:
        """A command in a process of its own."""
        given = [part.replace("URL", self.url) for part in COMMANDS[name]]
        program = "crossknn_lab" if name == "matrix" else "crossknn"
        command = [sys.executable, "-m", program, *given]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=folder, **pipes)

    def finish(self, name: str, folder: Path) -> tuple[int, list[Any], str]:
        """Run a command to its end: exit code, its lines without what is counted, and errors."""
        process = self.start(name, folder)
        out, said = process.communicate(timeout=300)
        return process.returncode, answers(out), said

    def kill(self, trial: int) -> dict[str, Any]:
        """Kill a command at a random moment, run it again, and count what was asked twice."""
        rng = np.random.default_rng([1, trial])
        name = list(COMMANDS)[trial % len(COMMANDS)]
        moment = float(rng.uniform(0.2, 1.0)) * self.seconds[name]
        with tempfile.TemporaryDirectory(dir=self.work) as made:
            folder = Path(made) / "state"
            shutil.copytree(self.work / "states" / name, folder)
            Endpoint.requests = []
            process = self.start(name, folder)
            time.sleep(moment)
            process.kill()
            process.communicate()
            before = {pair for request in Endpoint.requests for pair in request}
            first = len(Endpoint.requests)
            code, out, said = self.finish(name, folder)
        twice = [r for r in Endpoint.requests[first:] if any(pair in before for pair in r)]
        return {
            "command": name,
            "moment": round(moment, 3),
            "asked twice": sum(pair in before for r in Endpoint.requests[first:] for pair in r),
            "requests twice": len(twice),
            "same answer": code == 0 and out == self.expected[name],
            "error": said.strip() if code else "",
        }

    def damage(self, trial: int) -> dict[str, Any]:
        """Damage a file of the finished index; what `search` and `index verify` say of it."""
        rng = np.random.default_rng([2, trial])
        with tempfile.TemporaryDirectory(dir=self.work) as made:
            folder = Path(made) / "state"
            shutil.copytree(self.work / "states" / "end", folder)
            files = sorted(path for path in (folder / "d.index").rglob("*") if path.is_file())
            sizes = np.array([path.stat().st_size for path in files], float)
            path = files[rng.choice(len(files), p=sizes / sizes.sum())]
            name = path.relative_to(folder / "d.index").as_posix()
            if matrix := trial % 10 == 9:
                name, path = "m.npz", folder / "m.npz"
            kind = ("flip", "truncate", "zero")[trial % 3]
            data = bytearray(path.read_bytes())
            at = int(rng.integers(len(data)))
            if kind == "flip":
                data[at] ^= 1 << int(rng.integers(8))
            elif kind == "truncate":
                del data[at:]
            else:
                data[at : at + 512] = bytes(len(data[at : at + 512]))
            changed = bytes(data) != path.read_bytes()
            path.write_bytes(data)
            with contextlib.chdir(folder):
                search = [part.replace("URL", self.url) for part in COMMANDS["search"]]
                code, out, said = quietly(REPLAY, lab) if matrix else quietly(search)
                verified, _, sentence = quietly(["index", "verify", "d.index"])
        if "Traceback" in said + sentence or len(said.splitlines()) > 1:
            verdict = "traceback"
        elif code == 0 and out != self.expected["replay" if matrix else "search"]:
            verdict = "silent change"
        elif code or verified:
            verdict = "refused"
        else:
            verdict = "unseen, same answer" if changed else "nothing changed"
        error = said.strip() or sentence.strip()
        return {"file": name, "kind": kind, "verdict": verdict, "error": error}


def answers(out: str) -> list[Any]:
    """Lines of JSON without costs, which a second run may save."""
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    kept = ("results", "items", "recall", "query")
    return [{k: v for k, v in row.items() if k in kept} for row in found]


def quietly(arguments: Sequence[str], *commands: Any) -> tuple[int, list[Any], str]:
    """A command in this process."""
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            code = run([*arguments], *commands)
        except Exception as error:
            return 99, [], f"Traceback: {error!r}"
    return code, answers(out.getvalue()), said.getvalue()


def trials(
    path: Path, count: int, run_trial: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """The trials of a kind: those in the file, and the ones that it lacks."""
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    with path.open("a") as file:
        for trial in range(len(done), count):
            done.append(run_trial(trial))
            file.write(json.dumps(done[-1]) + "\n")
            file.flush()
    return done[:count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, count in TRIALS.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "campaign")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/campaign.json")
    options = parser.parse_args()
    Endpoint.requests = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options.work.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(options.work.resolve(), f"http://127.0.0.1:{server.server_port}/rerank")
    ways = (campaign.kill, campaign.damage, updates.steps, updates.kill, updates.kill_lists)
    kills, damages, steps, changes, lists = (
        trials(options.work / f"{name}.jsonl", getattr(options, name), way)
        for name, way in zip(TRIALS, ways, strict=True)
    )
    differing = [s for s in steps if s["differs"]]
    lossy = [c for c in changes if not (c["whole"] and c["same answer"])]
    broken = [each for each in lists if not (each["whole"] and each["same lists"])]
    bad_kills = [k for k in kills if not k["same answer"] or k["requests twice"] > IN_FLIGHT]
    bad = [d for d in damages if d["verdict"] in ("silent change", "traceback")]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    made = {
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "kills": dict(Counter(k["command"] for k in kills)),
        "most pairs asked twice": max((k["asked twice"] for k in kills), default=0),
        "most requests twice": max((k["requests twice"] for k in kills), default=0),
        "kills that lost something": bad_kills,
        "damages": dict(Counter(d["verdict"] for d in damages)),
        "damages that were not seen": bad,
        "random steps": sum(s["steps"] for s in steps),
        "random steps that differed": differing,
        "killed changes": dict(Counter(c["change"] for c in changes if c["killed"])),
        "killed changes that lost something": lossy,
        "killed buildings of lists": sum(each["killed"] for each in lists),
        "killed buildings of lists that lost something": broken,
    }
    options.out.write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps(made, indent=1))
    return int(bool(bad_kills or bad or differing or lossy or broken))


if __name__ == "__main__":
    sys.exit(main())
