"""The same tasks with two checkouts in turn: medians of time and peak memory, and their ratios.

    python lab/benchmarks/paired.py OLD NEW [--pairs 5] [--only NAME ...]

OLD is a checkout of a2db68d, whose names `OLD` picks, NEW one of today; both are folders with
`src`. A task is a process: all of it counts, or its part `timed()`. CPU time is the steadier.
Writes benchmarks/results/paired.json; tasks that are not run keep the figures that it has.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
DATA, RESULTS = BENCHMARKS / "data/medquad.npz", BENCHMARKS / "results/paired.json"

PREFIX = """
import contextlib, json, time
from pathlib import Path
import numpy as np
rng = np.random.default_rng(0)
@contextlib.contextmanager
def timed():
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    print("TIMED", time.perf_counter() - wall, time.process_time() - cpu)
from crossknn import ItemIndex, Searcher
from crossknn.data.reading import read_items
from crossknn.evaluation.replay import replay
from crossknn.types import Queries
"""

SEARCH = """
words = [f"word{i}" for i in range(3000)]
texts = [" ".join(rng.choice(words, 30)) for _ in range(5000)]
queries = [" ".join(rng.choice(words, 5)) for _ in range(20)]
vectors = rng.standard_normal((5000, 384), dtype=np.float32)
index = ItemIndex.build(texts, vectors=vectors, query_vectors=lambda q: vectors[: len(q)])
scorer = lambda pairs: [len(set(q.split()) & set(i.split())) + len(i) / 1e4 for q, i in pairs]
search = Searcher(index, scorer) if OLD else Searcher(index, scorer).search
with timed():
    search(queries, k=10, budget=100)
"""
REPLAY = """
specs = ["rerank(retriever=dense)", "axn(retriever=dense, rounds=10)", "kriging(retriever=dense)"]
if OLD:
    from crossknn.methods import methods as parse_methods
    specs = ["rnr(first=de)", "axn(first=de, rounds=10)", "kriging(first=de)"]
    from crossknn.indexes.stored import StoredMatrix
else:
    from crossknn.index.stored import StoredMatrix
    from crossknn.methods import parse_methods
matrix = StoredMatrix.load(Path(DATA))
with timed():
    list(replay(matrix, parse_methods("\\n".join(specs)), [50, 200], [10]))
"""
READ = """
path = Path(FOLDER) / "items.jsonl"
rows = [json.dumps({"id": str(i), "text": f"item {i} " * 20}) for i in range(20_000)]
path.write_text("\\n".join(rows))
with timed():
    read_items(path)
"""
LOADED = """
folder = Path(FOLDER) / ("old" if OLD else "new")
if not folder.exists():
    words = [f"word{i}" for i in range(20_000)]
    texts = [" ".join(row) for row in rng.choice(words, (100_000, 20))]
    vectors = rng.standard_normal((100_000, 384), dtype=np.float32)
    ItemIndex.build(texts, vectors=vectors).save(folder)
index, query = ItemIndex.load(folder), rng.standard_normal((1, 384), dtype=np.float32)
with timed():
"""
DENSE = "    query @ (index.vectors('vectors') if OLD else index.vectors['vectors']).T"
VECTORS = """
n, calls, shortlist = SIZES
items, given = (rng.standard_normal((size, 64), dtype=np.float32) for size in (n, 4))
index = ItemIndex.build([f"item {i}" for i in range(n)], vectors=items, query_vectors=lambda q: given)
name = "first=vectors" if OLD else "retriever=vectors"
unused = "anchors" if OLD else "use_anchors"
options = f", {unused}=false, shortlist={shortlist}" if shortlist else ""
spec = f"{'kriging' if shortlist else 'gp'}({name}{options})"
scorer = lambda pairs: [float(len(q) * 7 % 5 + int(i.split()[1]) % 97) for q, i in pairs]
searcher = Searcher(index, scorer, spec)
search = searcher if OLD else searcher.search
with timed():
    search([f"query {q}" for q in range(4)], k=10, budget=calls)
"""
TASKS = {
    "import crossknn": "import crossknn",
    "crossknn --version": "from crossknn.cli import main\nimport sys\n"
    "sys.argv = ['crossknn', '--version']\nmain()",
    "search, 20 queries, 5,000 items": PREFIX + SEARCH,
    "replay of 3 methods, medquad": PREFIX + REPLAY,
    "reading 20,000 items": PREFIX + READ,
    "first dense query of a loaded index": PREFIX + LOADED + DENSE,
    "gp, 500 calls, 10,000 items, 4 queries": f"SIZES = 10_000, 500, 0\n{PREFIX}{VECTORS}",
    "kriging with a shortlist, 100 calls, 100,000 items, 4 queries": (
        f"SIZES = 100_000, 100, 10_000\n{PREFIX}{VECTORS}"
    ),
}


def run_once(checkout: Path, old: bool, code: str, folder: str) -> tuple[float, ...]:
    """Seconds of wall and of CPU time, and peak memory in MB."""
    code = f"OLD, FOLDER, DATA = {old}, {folder!r}, {str(DATA)!r}\n{code}"
    env = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    printed = child.stdout.read().decode()
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{checkout}: the task failed\n{printed}")
    times = time.perf_counter() - start, used.ru_utime + used.ru_stime
    if "TIMED" in printed:
        times = tuple(map(float, printed.split("TIMED")[1].split()))
    return *times, used.ru_maxrss / 1024


def compare(old: Path, new: Path, code: str, pairs: int, folder: str) -> dict[str, list[float]]:
    """Of wall, CPU and peak: the medians of old and of new, and of the pairs' ratios."""
    made = [[run_once(c, c == old, code, folder) for c in (old, new)] for _ in range(pairs + 1)]
    found = {}
    for column, name in enumerate(("wall_s", "cpu_s", "peak_mb")):
        both = [(o[column], n[column], n[column] / o[column]) for o, n in made[1:]]  # 1st: warm up
        found[name] = [round(statistics.median(v), 4) for v in zip(*both, strict=True)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(TASKS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    asked = ["git", "-C", str(options.new), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    known = json.loads(options.out.read_text())["tasks"] if options.out.exists() else {}
    about = {"base": "a2db68d", "columns": ["old", "new", "median ratio"]}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            found = compare(options.old, options.new, TASKS[name], options.pairs, folder)
            measured = {"pairs": options.pairs, "commit": commit, "date": date.today().isoformat()}
            known[name] = measured | found
            options.out.write_text(json.dumps(about | {"tasks": known}, indent=1) + "\n")
            print(json.dumps({name: found}), flush=True)


if __name__ == "__main__":
    main()
