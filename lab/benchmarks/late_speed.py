"""Milliseconds of CMC and of the cross-encoder by the number of candidates, and of the pipelines
they make (CMC, figure 4, tables 2 and 3), one query at a time, with the operations beside them.

    python lab/benchmarks/late_speed.py --data medquad --retriever MiniLM --cmc MODEL --scorer bundled

MODEL is a CMC folder of `train_late.py`, exported here and run as ONNX, as the cross-encoder is.
Medians of interleaved repeats on long texts; ratios are of one run. Only the first items are
encoded; to compare more candidates their states are repeated, which takes as long.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tokenizers import Tokenizer

from crossknn.data.reading import read_labelled
from crossknn.models.export import export_model
from crossknn.retrievers.base import DenseRetriever
from crossknn.retrievers.late import LateRetriever
from crossknn.scorers import CrossEncoder, DualEncoder, open_late
from crossknn.scorers.opening import bundled_folder
from crossknn.types import Pairs, Queries, States

COMPARED = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
SCORED = (1, 4, 16, 64)
PIPELINES = ((64, None), (16, None), (16, 512), (64, 512))  # cross-encoder calls, depth of CMC
LAYERS, WIDTH, FEED_FORWARD = 6, 384, 1536  # of the cross-encoder
CMC_LAYERS, CMC_FEED_FORWARD = 2, 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--retriever", required=True)
    parser.add_argument("--cmc", required=True)
    parser.add_argument("--scorer", default="bundled")
    parser.add_argument("--queries", type=int, default=12)
    parser.add_argument("--items", type=int, default=2048, help="how many are encoded")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[2] / "benchmarks/results/late_speed.json"
    )
    options = parser.parse_args()
    (corpus,) = read_labelled(options.data, "test")
    corpus = corpus.sample(options.queries, 1)
    texts, items = corpus.queries.texts, list(corpus.items.texts[: options.items])
    copies = -(-max(COMPARED) // len(items))
    with TemporaryDirectory() as folder:
        first = DualEncoder(
            export_model(options.first, Path(folder) / "first", "dual-encoder"),
            threads=options.threads,
        )
        cmc = open_late(
            export_model(options.cmc, Path(folder) / "cmc", "late-interaction"),
            threads=options.threads,
        )
        tokenizer = tokenizer_of(options.scorer)
        scorer = CrossEncoder(options.scorer, threads=options.threads)
        vectors, states = first.encode_items(items), cmc.encode_items(items)
        # Copies are as slow to go through, and come last: the best are all different texts.
        vectors = np.concatenate([vectors, np.zeros_like(np.tile(vectors, (copies - 1, 1)))])
        states = States(np.tile(states.values, (copies, 1)), np.arange(len(vectors) + 1))
        items = items * copies
        stage = DenseRetriever(vectors, lambda queries: first.encode_queries(queries.texts))
        late = {
            depth: LateRetriever(stage, cmc, states, depth)
            for _, depth in PIPELINES
            if depth is not None
        }
        best = stage.top(Queries(texts), max(COMPARED)).items
        took: dict[str, list[float]] = defaultdict(list)
        tokens: list[int] = []

        def timed(name: str, work: Callable[[], object]) -> None:
            began = time.perf_counter()
            work()
            took[name].append(1000 * (time.perf_counter() - began))

        def score(query: int, chosen: np.ndarray) -> None:
            pairs = Pairs(np.full(len(chosen), query), chosen)
            for _ in scorer.score(pairs, texts, items):
                pass

        def search(query: int, calls: int, depth: int | None) -> None:
            way = stage if depth is None else late[depth]
            score(query, way.top(Queries([texts[query]]), calls).items[0])

        for query, text in enumerate(texts):
            encoded = cmc.encode_queries([text])
            timed("retriever", lambda text=text: stage.top(Queries([text]), 512))
            timed("query of cmc", lambda text=text: cmc.encode_queries([text]))
            for count in COMPARED:
                if count <= 1024 or query < 3:
                    listed = best[query : query + 1, :count]
                    timed(f"cmc {count}", lambda q=encoded, c=listed: cmc.compare(q, states, c))
            for count in SCORED:
                chosen = best[query, :count]
                timed(f"cross-encoder {count}", lambda query=query, c=chosen: score(query, c))
            for calls, depth in PIPELINES:
                name = f"{calls} of the retriever" if depth is None else f"{calls} of cmc's {depth}"
                timed(name, lambda q=query, c=calls, d=depth: search(q, c, d))
            pairs = [(text, items[i]) for i in best[query, : max(SCORED)]]
            tokens += [
                min(len(row.ids), scorer.max_length) for row in tokenizer.encode_batch(pairs)
            ]
    length = float(np.mean(tokens))
    found = {
        "queries": len(texts),
        "threads": options.threads,
        "scorer": scorer.name,
        "tokens_per_pair": round(length, 1),
        "milliseconds": {name: round(float(np.median(ms)), 2) for name, ms in took.items()},
        "gigaflops": {
            **{
                f"cmc {count}": flops(1 + count, CMC_LAYERS, CMC_FEED_FORWARD) for count in COMPARED
            },
            **{
                f"cross-encoder {count}": count * flops(length, LAYERS, FEED_FORWARD)
                for count in SCORED
            },
        },
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(found["milliseconds"])


def tokenizer_of(scorer: str) -> Tokenizer:
    folder = bundled_folder("cross-encoder") if scorer == "bundled" else Path(scorer)
    assert folder is not None
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def flops(rows: float, layers: int, feed_forward: int) -> float:
    """Billions of multiplications and additions of a transformer over so many states.

    Per state: 4 d^2 of the attention's linear layers, 2 d f of the feed-forward block, and 2 d for
    every state that it attends to.
    """
    each = 4 * WIDTH**2 + 2 * WIDTH * feed_forward + 2 * WIDTH * rows
    return 2 * layers * rows * each / 1e9


if __name__ == "__main__":
    main()
