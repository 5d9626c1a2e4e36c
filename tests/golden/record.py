"""Record the golden picks: in `tests`, `python -m golden.record` (see `--help`).

Only a commit that says which picks change, and why, may record them anew.
"""

from __future__ import annotations

import argparse
import json
from hashlib import sha256
from pathlib import Path

from golden.cases import cases

FILE = Path(__file__).with_name("picks.json")
SHOWN = 4


def summary(picks):
    """Of one query's [(item, round)]: a digest of all, and the first items to read."""
    digest = sha256(json.dumps(picks).encode()).hexdigest()[:8]
    return f"{digest} {len(picks)}:{' '.join(str(item) for item, _ in picks[:SHOWN])}"


def recorded():
    """{case: [summary of each query]}."""
    return json.loads(FILE.read_text())


def compare(known, now):
    """The cases whose picks differ."""
    return [key for key, lines in now.items() if known.get(key) != lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="record the cases whose key has this text")
    parser.add_argument("--drop-unsteady", action="store_true", help="drop what now differs")
    options = parser.parse_args()
    known = recorded() if FILE.exists() else {}
    now = {}
    for key, search in cases():
        if options.only in key:
            now[key] = [summary(picks) for picks in search()]
    changed = compare(known, now)
    if options.drop_unsteady:
        known = {key: lines for key, lines in known.items() if key not in changed}
    else:
        known = {**known, **now} if options.only else now
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in known.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(known)} cases; {len(changed)} differ from before", *changed, sep="\n")


if __name__ == "__main__":
    main()
