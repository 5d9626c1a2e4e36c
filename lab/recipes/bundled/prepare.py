"""Write the training folders and the model to start from.

    python prepare.py --general DIR --domains DIR --encoder DIR --out work

`--domains` holds the held-out domains (domains.py): pairs with a text of theirs are left out.
`--general` holds the pairs of general questions and texts (NAME.jsonl.gz, lines {"query", "text",
"label"}), `--encoder` the model all-MiniLM-L6-v2. Each source becomes a BEIR folder, with about
fifty dev queries; `start` is a cross-encoder that scores as the encoder does, with token weights
from the training texts.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from docstrings import docstring_pairs
from domain import lines_of, write_lines
from domains import evaluation_texts, is_held_out, leak, programs

from crossknn_train.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel

SEED = 13
N_DEV = 40
N_ITEMS = 4_000
"""Most items of a folder: a query's negatives come from its own folder."""
QUERIES = {
    "conala": 2_000,
    "disfl_qa": 1_000,
    "nl2bash": 2_000,
    "nq_qed_passages": 700,
    "nq_qed_sentences": 900,
    "selqa": 800,
    "squad_sentences": 3_500,
    "strategyqa": 2_000,
    "tldr": 3_000,
    "tldr_pages": 3_000,
    "wordset": 2_500,
    "xquad_en": 300,
    "docstrings": 2_500,
}
"""How many train queries each source gives at most."""
TASKS = ("conala", "docstrings", "nl2bash", "tldr", "tldr_pages")
"""Sources whose queries are tasks, such as "List all files"."""
Pair = tuple[str, str, int]


def pairs_of(general: Path, name: str) -> Iterator[Pair]:
    """Read a source's pairs (query, text, label)."""
    if name == "docstrings":
        yield from ((query, text, 1) for query, text in docstring_pairs())
    elif name.startswith("tldr"):
        for command, about, examples in tldr_pages(general):
            if is_held_out(command):
                continue
            if name == "tldr":
                kept = (e for e in examples if not any(map(is_held_out, programs(*e))))
                yield from ((task, line, 1) for task, line in kept)
            elif " alias of " not in about:
                yield from ((task, f"{command}: {about}", 1) for task, _ in examples[:3])
                yield f"{command} command", f"{command}: {about}", 1
    else:
        yield from pairs_in(general, name)


def pairs_in(general: Path, name: str) -> Iterator[Pair]:
    for pair in lines_of(general / f"{name}.jsonl.gz"):
        yield pair["query"].strip(), pair["text"].strip(), int(pair["label"])


def tldr_pages(general: Path) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield pages (command, description, examples): the line of a page's name, which has no other
    mark, follows those of its examples."""
    examples: list[tuple[str, str]] = []
    for query, text, _ in pairs_in(general, "tldr"):
        first = query.split()[0]
        if query[:1].isupper() or text.split()[0].casefold() == first or not text[:1].isupper():
            examples.append((query, text))
            continue
        yield query, text, examples
        examples = []


def write_folder(out: Path, name: str, pairs: Iterable[Pair]) -> list[str]:
    """Write a BEIR folder with the splits train and dev, and return its item texts."""
    rng, right, texts = random.Random(SEED), {}, {}
    for query, text, label in pairs:
        place = texts.setdefault(text, len(texts))
        if label and query.casefold() != text.casefold():
            right.setdefault(query, set()).add(place)
    queries = sorted(right)
    rng.shuffle(queries)
    queries = queries[: QUERIES[name] + N_DEV]
    needed = set().union(*(right[query] for query in queries))
    others = [place for place in range(len(texts)) if place not in needed]
    rng.shuffle(others)
    kept = sorted(needed.union(others[: max(0, N_ITEMS - len(needed))]))
    all_texts = list(texts)
    folder = out / name
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    write_lines(folder / "corpus.jsonl", [{"_id": f"d{p}", "text": all_texts[p]} for p in kept])
    put = [asked(query, rng) if name in TASKS else query for query in queries]
    rows = [{"_id": f"q{i}", "text": query} for i, query in enumerate(put)]
    write_lines(folder / "queries.jsonl", rows)
    for split, chosen in (("dev", range(N_DEV)), ("train", range(N_DEV, len(queries)))):
        lines = [f"q{i}\td{p}\t1\n" for i in chosen for p in sorted(right[queries[i]])]
        head = "query-id\tcorpus-id\tscore\n"
        (folder / "qrels" / f"{split}.tsv").write_text(head + "".join(lines))
    print(f"{name}: {len(queries) - N_DEV} train queries, {len(kept)} items")
    return [all_texts[place] for place in kept]


def asked(query: str, rng: random.Random) -> str:
    """Put a third of the tasks as people ask for them: in lower case, or as a question."""
    form = rng.choice(["{}", "{}", "{}", "{}", "how to {}", "how do I {}?", "how can I {}"])
    if not query[1:2].islower():
        return query
    lower = query[:1].lower() + query[1:].rstrip(".")
    return form.format(lower if form != "{}" or rng.random() < 0.3 else query)


def start(encoder: Path, texts: list[str]) -> CrossEncoderModel:
    """Make the cross-encoder to start from: a token's weight is its inverse document frequency."""
    config = CrossEncoderConfig(head="interaction", max_length=256)
    model = CrossEncoderModel.new(encoder, config)
    counts: Counter[int] = Counter()
    for ids in model.tokenizer.ids(texts):
        if ids is not None:
            counts.update(set(ids.tolist()))
    found = np.array([counts[token] for token in range(model.head.token_weight.num_embeddings)])
    idf = np.log1p((len(texts) - found + 0.5) / (found + 0.5)) / 6
    model.head.token_weight.weight.data[:] = torch.from_numpy(idf.astype(np.float32))[:, None]
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("general", "domains", "encoder", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    texts: list[str] = []
    known = evaluation_texts(given.domains)
    for name in QUERIES:
        pairs = (p for p in pairs_of(given.general, name) if not leak(p[0], p[1], known))
        texts += write_folder(given.out, name, pairs)
    start(given.encoder, texts).save_pretrained(given.out / "start")


if __name__ == "__main__":
    main()
