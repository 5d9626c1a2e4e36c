"""The plan of the house: no cycles, no rooms of one user, few files entered by one query."""

import ast
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import crossknn as ck

SRC = Path(ck.__file__).parent

IDEAS = {
    "trial.data": "what a trial searches, as much as fits into the minutes",
    "search.ladder": "a search with a cheaper scorer before that with an expensive one",
    "evaluation.rungs": "what is found after a search with cheaper scorers",
    "evaluation.verdict": "what to do, by a measure of judged queries",
    "fitting.calibration": "probabilities of relevance from judgements",
    "fitting.fusion": "weights of retrievers beside the exact score",
    "index.building": "what an index is built of",
    "index.elastic_queries": "the mapping, filters and inner products as queries to Elasticsearch",
    "index.updates": "adding and deleting items",
    "fitting.factors": "which pairs to score, and item vectors by least squares",
    "fitting.prior": "a prior from anchors or past searches",
    "fitting.stopping": "when a search has found enough",
    "fitting.kriging": "fitting the prior, and what it is expected to gain",
    "methods.gp": "a Gaussian process as a predictor",
    "models.tokens": "texts as token ids, cut to a limit",
    "adapters.mcp": "an index as tools of a language model",
    "scorers.library": "models of other libraries as scorers and encoders",
    "service.app": "the HTTP service: its routes, who may ask, bounded bodies, and how it runs",
    "service.batches": "batches that many searches share",
    "service.connections": "sockets and bounded connections",
    "service.metrics": "what the service counts",
    "service.shapes": "bodies of requests and answers",
    "trial.result": "what a trial has found, and its verdict",
}
"""Modules that one other module imports, and the idea that each of them is. Commands and methods
have one importer by design."""

MOST_FILES = {"a query": 22, "an index with anchors and a prior": 30}
"""Files of crossknn that may be entered: by a search with the default method, and by building,
saving and loading an index of a few texts, collecting anchors and fitting kriging's prior."""


@cache
def nodes(path):
    """The imports of a file."""
    tree = ast.walk(ast.parse(path.read_text()))
    return [node for node in tree if isinstance(node, ast.Import | ast.ImportFrom)]


@cache
def imports():
    """{module: modules of crossknn that it imports, type-only imports included}."""
    files = {_name(path): path for path in SRC.rglob("*.py")}
    found = {}
    for name, path in files.items():
        wanted = set()
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                wanted |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
            elif isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
        # The package itself imports lazily, and everything imports the package.
        found[name] = {module for module in wanted & set(files) if module not in (name, "crossknn")}
        longer = {m for m in found[name] if any(o.startswith(f"{m}.") for o in found[name])}
        found[name] -= {m for m in longer if _only_package(path, m)}
    return found


def _only_package(path, package):
    """Whether a file imports modules of a package, and nothing that the package itself defines."""
    names = {p.stem for p in (SRC / Path(*package.split(".")[1:])).glob("*")}
    return all(
        {alias.name for alias in node.names} <= names
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module == package
    )


def _name(path):
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_modules_import_each_other():
    TopologicalSorter(imports()).prepare()  # CycleError names those that do


def test_a_module_of_one_user_is_an_idea():
    users = Counter(
        module for name, wanted in imports().items() if name != "crossknn" for module in wanted
    )
    public = {getattr(getattr(ck, name), "__module__", "") for name in ck.__all__}
    single = {module for module, count in users.items() if count == 1} - public
    short = {module.removeprefix("crossknn.") for module in single}
    rooms = {name for name in short if not name.startswith(("cli", "methods."))}
    assert rooms <= set(IDEAS)


@pytest.fixture(scope="module")
def works(tmp_path_factory):
    """What is done, by its name: functions that have been run once."""
    texts = [f"how to {verb} a {noun}" for verb in ("zip", "sort") for noun in ("file", "list")]
    folder = tmp_path_factory.mktemp("house") / "index"

    def make():
        ck.ItemIndex.build(texts, encoder="bundled").save(folder)
        index = ck.ItemIndex.load(folder)
        ck.collect_anchors(index, ck.CrossEncoder(), texts)  # fits the prior, too
        return index

    searcher = ck.Searcher(make(), ck.CrossEncoder())
    searcher.search("zip it", k=1, budget=3)
    found = lambda: searcher.search("sort a list", k=1, budget=3)  # noqa: E731
    return {"a query": found, "an index with anchors and a prior": make}


@pytest.mark.parametrize("work", MOST_FILES)
def test_few_files_are_entered(works, work):
    entered = set()

    def note(frame, event, _):
        if event == "call":
            entered.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        works[work]()
    finally:
        sys.setprofile(None)
    ours = sorted(str(Path(f).relative_to(SRC)) for f in entered if f.startswith(str(SRC)))
    assert len(ours) <= MOST_FILES[work], ours


AT_MOST = {"module": 450, "class": 400, "function": 60}
"""Lines of code that somebody can read at a sitting."""


def _definitions(tree, inside):
    """`(kind, name, lines)` of the functions and classes of a module, nested ones included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            name = f"{inside}.{node.name}"
            yield kind, name, node.end_lineno - node.lineno + 1
            yield from _definitions(node, name)


def test_nothing_is_large():
    large = {kind: set() for kind in AT_MOST}
    root = Path(__file__).parent.parent
    files = {path: _name(path).removeprefix("crossknn.") for path in SRC.rglob("*.py")}
    for folder in ("train/src", "lab/src", "lab/benchmarks", "lab/recipes"):
        files |= {p: f"{folder[:5].rstrip('/')}.{p.stem}" for p in (root / folder).rglob("*.py")}
    assert len(files) > 130
    for path, module in files.items():
        text = path.read_text()
        sizes = [("module", module, text.count("\n")), *_definitions(ast.parse(text), module)]
        for kind, name, lines in sizes:
            if lines > AT_MOST[kind]:
                large[kind].add(name)
    assert not any(large.values()), large


MOST_LINES = {
    "src": 25_517,
    "train/src": 3_960,
    "lab": 16_125,
    "tests": 24_175,
    "train/tests": 2_450,
}
"""Lines of Python in each part of the repository: who needs more looks first for what can go."""


@pytest.mark.parametrize("part", MOST_LINES)
def test_the_house_does_not_grow(part):
    files = [*(Path(__file__).parents[1] / part).rglob("*.py")]
    assert len(files) > 10
    lines = sum(path.read_bytes().count(b"\n") for path in files)
    assert lines <= MOST_LINES[part], lines
