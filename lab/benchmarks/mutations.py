"""Which share of seeded mutations of the search core the fast tests catch.

    pytest -m "not torch and not slow" --cov=crossknn --cov-branch --cov-context=test
    python lab/benchmarks/mutations.py --coverage .coverage --count 60 --out mutations.jsonl

A mutation changes one operator, comparison, condition or whole number of a line that a test runs.
Only tests that run the line can catch it, so only those are run, in the order of the file names.
Finished mutations are kept in --out: the same command goes on.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PAIRS = (
    ((ast.Lt, "<"), (ast.LtE, "<=")),
    ((ast.Gt, ">"), (ast.GtE, ">=")),
    ((ast.Eq, "=="), (ast.NotEq, "!=")),
    ((ast.Is, "is"), (ast.IsNot, "is not")),
    ((ast.In, "in"), (ast.NotIn, "not in")),
    ((ast.Add, "+"), (ast.Sub, "-")),
    ((ast.Div, "/"), (ast.Mult, "*")),
    ((ast.And, "and"), (ast.Or, "or")),
)
SWAPS = {a: new for pair in PAIRS for (a, _), (_, new) in (pair, pair[::-1])}
SWAPS |= {ast.FloorDiv: "*", ast.Mod: "*"}
AT_MOST = 150
"""Tests run for one mutation; those of a line that more tests run are drawn by seed."""


class Mutation(NamedTuple):
    """Replace the text from `start` to `stop` (offsets) of `file` by `new`."""

    file: str
    line: int
    start: int
    stop: int
    new: str


def mutations(file: Path, name: str, lines: set[int]) -> Iterator[Mutation]:
    """Every mutation of the file on these lines."""
    text = file.read_text(encoding="utf-8")
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))

    def at(node: Any, end: bool = False) -> int:
        line, column = (
            (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        )
        row = text[begins[line - 1] : begins[line]].encode()[:column].decode()
        return begins[line - 1] + len(row)

    for node in ast.walk(ast.parse(text)):
        if getattr(node, "lineno", 0) not in lines:
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            pair, op = (node.left, node.comparators[0]), node.ops[0]
        elif isinstance(node, ast.BinOp):
            pair, op = (node.left, node.right), node.op
        elif isinstance(node, ast.BoolOp):
            pair, op = (node.values[0], node.values[1]), node.op
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield Mutation(name, node.lineno, at(node), at(node, True), str(node.value + 1))
            continue
        elif isinstance(node, ast.If) and not isinstance(node.test, ast.Compare | ast.BoolOp):
            test = ast.get_source_segment(text, node.test)
            start, stop = at(node.test), at(node.test, True)
            yield Mutation(name, node.lineno, start, stop, f"(not ({test}))")
            continue
        else:
            continue
        start, stop = at(pair[0], True), at(pair[1])
        between = text[start:stop]
        if type(op) in SWAPS and "(" not in between and ")" not in between and "\n" not in between:
            yield Mutation(name, node.lineno, start, stop, f" {SWAPS[type(op)]} ")


def tests_of(database: sqlite3.Connection, file: Path) -> dict[int, list[str]]:
    """The tests that run each line of the file."""
    found: dict[int, list[str]] = {}
    rows = database.execute(
        "SELECT context.context, arc.fromno, arc.tono FROM arc JOIN context ON "
        "context.id = arc.context_id JOIN file ON file.id = arc.file_id WHERE file.path = ?",
        (str(file),),
    )
    for test, *ends in rows:
        for line in ends:
            if test and line > 0:
                found.setdefault(line, []).append(test.partition("|")[0])
    return {line: sorted(set(tests)) for line, tests in found.items()}


def caught(root: Path, mutation: Mutation, tests: list[str]) -> bool:
    """Whether one of the tests fails with the mutation."""
    file = root / mutation.file
    before = file.read_text(encoding="utf-8")
    after = before[: mutation.start] + mutation.new + before[mutation.stop :]
    try:
        compile(after, str(file), "exec")
        file.write_text(after, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        ended = subprocess.run(command, cwd=root, capture_output=True, timeout=300, check=False)
        return ended.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(before, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the checkout to mutate")
    parser.add_argument("--coverage", type=Path, required=True, help="made with --cov-context=test")
    parser.add_argument("--parts", default="search,methods,scores,fitting", help="of src/crossknn")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    root, draw = options.root.resolve(), random.Random(options.seed)
    database = sqlite3.connect(options.coverage)
    pool: list[tuple[Mutation, list[str]]] = []
    for part in options.parts.split(","):
        path = root / "src/crossknn" / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            run = tests_of(database, file)
            name = str(file.relative_to(root))
            pool += [(m, run[m.line]) for m in mutations(file, name, set(run))]
    chosen = draw.sample(pool, min(options.count, len(pool)))
    done: dict[str, bool] = {}
    if options.out.is_file():
        rows = map(json.loads, options.out.read_text().splitlines())
        done = {json.dumps(row["mutation"]): row["caught"] for row in rows}
    for mutation, tests in chosen:
        key = json.dumps(list(mutation))
        if key in done:
            continue
        few = tests if len(tests) <= AT_MOST else sorted(draw.sample(tests, AT_MOST))
        done[key] = caught(root, mutation, few)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"mutation": list(mutation), "caught": done[key]}) + "\n")
        print("caught" if done[key] else "MISSED", *mutation[:2], mutation.new, flush=True)
    print(f"{sum(done.values())} of {len(done)} caught ({len(pool)} to draw from)")


if __name__ == "__main__":
    main()
