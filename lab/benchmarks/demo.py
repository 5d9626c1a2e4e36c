"""The demo's table as a file: runs `crossknn demo --json` in a folder and keeps what it prints.

python lab/benchmarks/demo.py [--folder crossknn-demo]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="a new folder for its files")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[2] / "benchmarks/results/demo.json"
    )
    options = parser.parse_args()
    started = time.perf_counter()
    command = [sys.executable, "-m", "crossknn", "demo", "--json", "--folder", str(options.folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - started
    rows = [row for row in map(json.loads, done.stdout.splitlines()) if "recall" in row]
    known = {
        "python": f"CPython {platform.python_version()}",
        "cores": len(os.sched_getaffinity(0)),
        "seconds": seconds,
        "items": int(rows[0]["calls"]),
        "queries": rows[0]["n_queries"],
        "rows": rows,
    }
    options.out.write_text(json.dumps(known) + "\n")


if __name__ == "__main__":
    main()
