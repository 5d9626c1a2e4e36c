"""A stored score matrix of a wordnet domain, of a BEIR folder, or of the docs of this Python.

    python lab/benchmarks/domain_matrix.py --data wordnet --domain noun.artifact --items 3000 \
        --queries 200 --anchors 100 --scorer ONNX --bfloat16 --encoder MiniLM --out artifact.npz
    python lab/benchmarks/domain_matrix.py --data medquad --items 1000 --queries 120 --anchors 60 \
        --max-length 64 --out medquad.npz        # with the bundled models
    python lab/benchmarks/domain_matrix.py --queries 240 --anchors 140 --max-length 96 \
        --out python-docs.npz                    # the standard library, as in `crossknn demo`

Resumable, and without texts: the format of `crossknn-lab replay`. For bfloat16 see `bfloat16.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from progress import line

from crossknn.data.dataset import Labelled
from crossknn.data.docstrings import collect_standard_library
from crossknn.data.items import Items
from crossknn.data.reading import read_labelled
from crossknn.fitting.matrix import MatrixFile
from crossknn.index.item_index import ItemIndex
from crossknn.index.stored import read_arrays, write_arrays
from crossknn.scorers import CrossEncoder, DualEncoder
from crossknn.scorers.base import Scorer

SEED = 0


def sample_of_items(corpus: Labelled, count: int) -> Items:
    """`count` items of the corpus, in its order, among them the gold ones of all its queries."""
    n = len(corpus.items)
    chosen = np.arange(n)
    if count < n:
        rest = np.setdiff1d(np.random.default_rng(SEED).permutation(n), corpus.gold)
        rest = np.random.default_rng(SEED).permutation(rest)
        gold = np.unique(corpus.gold)
        chosen = np.sort(np.concatenate([gold, rest[: count - len(gold)]]))
    return subset(corpus.items, chosen)


def subset(items: Items, positions: Sequence[int] | np.ndarray) -> Items:
    return Items(
        ids=[items.ids[i] for i in positions],
        texts=[items.texts[i] for i in positions],
        titles=[items.titles[i] for i in positions],
        extra=[{}] * len(positions),
    )


def write(file: MatrixFile, corpus: Labelled, anchors: int, what: str) -> None:
    """The scores of the corpus's queries, the first `anchors` as anchor queries."""
    gold = zip(corpus.queries.ids, corpus.gold, strict=True)
    qrels = {query: {corpus.items.ids[item]: 1} for query, item in gold}
    file.add_queries(corpus.queries, anchors=anchors, qrels=qrels, progress=line(what))


def corpus_of(options: argparse.Namespace) -> Labelled:
    """The domain of a ZESHEL folder, the test split of a BEIR folder, or the demo's data."""
    if options.data is None:
        corpus = python_docs()
    elif options.domain is None:
        (corpus,) = read_labelled(options.data, "test")
    else:
        (corpus,) = read_labelled(options.data, domains=[options.domain])
    return corpus


def python_docs() -> Labelled:
    """What `crossknn demo` searches, its queries in random order: the first become anchors."""
    demo = collect_standard_library()
    found = tuple(demo.items.positions(demo.qrels[query]) for query in demo.queries.ids)
    whole = Labelled(name="python-docs", items=demo.items, queries=demo.queries, positives=found)
    return whole.take(np.random.default_rng(SEED).permutation(len(whole)))


def add_vectors(path: Path, name: str, made: DualEncoder, items: Items, corpus: Labelled) -> None:
    """A second dual encoder's vectors, of the items and the queries (AXN, figures 15 and 16)."""
    arrays = read_arrays(path)
    arrays[f"item_vectors_{name}"] = made.encode_items(items.texts).astype("float16")
    arrays[f"query_vectors_{name}"] = made.encode_queries(corpus.queries.texts).astype("float16")
    write_arrays(path, arrays, by=path.with_suffix(".tmp"))


def scorer_of(options: argparse.Namespace) -> Scorer:
    if options.bfloat16:
        from bfloat16 import Bfloat16CrossEncoder

        return Bfloat16CrossEncoder(options.scorer, threads=options.threads)
    return CrossEncoder(options.scorer, threads=options.threads, max_length=options.max_length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a folder; the docs of this Python by default")
    parser.add_argument("--domain", help="of a ZESHEL folder; without it --data is a BEIR folder")
    parser.add_argument("--items", type=int, help="all by default")
    parser.add_argument("--queries", type=int, required=True)
    parser.add_argument("--anchors", type=int, required=True)
    parser.add_argument("--scorer", default="bundled")
    parser.add_argument("--encoder", default="bundled")
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--item-item", type=int, help="so many items, as queries, with every item")
    parser.add_argument("--second", help="vectors of another dual encoder: NAME=FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    corpus = corpus_of(options).sample(options.queries, SEED)
    items = sample_of_items(corpus, options.items or len(corpus.items))
    index = ItemIndex.build(items, encoder=DualEncoder(options.encoder), seed=SEED)
    scorer = scorer_of(options)
    file = MatrixFile(options.out, index, scorer, dtype="float16")
    write(file, corpus, options.anchors, options.out.name)
    if options.item_item:
        file.add_items(options.item_item, seed=SEED)
    if options.second:
        name, _, encoder = options.second.partition("=")
        add_vectors(options.out, name, DualEncoder(encoder), items, corpus)


if __name__ == "__main__":
    main()
