"""Train the models of docs/results.md on the `wordnet` data: a dual encoder, and [CLS]-CE and
[EMB]-CE with dual-encoder, TF-IDF and random negatives. Resumable: run it again after a kill.

    python lab/benchmarks/train_wordnet.py --data wordnet --encoder MiniLM --work WORK [--only emb-de]

Without dropout, which costs more than it gives where a run sees its mentions once; with the nearest
wrong senses, because far ones teach only which word is meant; from a dual encoder that pools at the
marks, which are what an [EMB] head reads.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from progress import line

from crossknn.models.backbone import save_backbone
from crossknn.models.dual_encoder import DualEncoderModel
from crossknn.training.run import RUN, train
from crossknn.training.settings import (
    CrossEncoderSettings,
    DataSettings,
    DualEncoderSettings,
    NegativesSettings,
    TrainingSettings,
)

MIN_MENTIONS = 200
STEPS = 1200  # with dual-encoder negatives; a third with the others
BATCH = 10
HEADS = ("emb", "cls")
KINDS = {"dense": "dual-encoder", "tfidf": "tfidf", "random": "random"}
MODELS = ("dual-encoder", *(f"{head}-{kind}" for kind in KINDS for head in HEADS))
WINDOW = {"marked": True, "query_length": 32, "item_length": 48}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoder", required=True, help="all-MiniLM-L6-v2: a folder or hub name")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", choices=MODELS, nargs="*", default=MODELS)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    for name in arguments.only:
        folder = arguments.work / name
        if (folder / "README.md").exists():
            continue
        if name == "dual-encoder":
            train(dual_encoder(arguments), folder, progress=line(name))
            continue
        head, kind = name.split("-")
        share_mined(arguments.work, name, kind)
        settings = cross_encoder(arguments, head, kind)
        train(settings, folder, progress=line(name))


def dual_encoder(arguments: argparse.Namespace) -> DualEncoderSettings:
    return DualEncoderSettings(
        encoder=arguments.encoder,
        data=DataSettings(folder=arguments.data, dev_queries=500),
        model={"pooling": "marks", **WINDOW},
        negatives=NegativesSettings(count=2, depth=16),
        training=TrainingSettings(
            steps=120,
            epochs=1,
            batch=64,
            learning_rate=1.5e-4,
            warmup=0.1,
            evaluations=1,
            dropout=0.0,
            threads=arguments.threads,
        ),
    )


def cross_encoder(arguments: argparse.Namespace, head: str, kind: str) -> CrossEncoderSettings:
    return CrossEncoderSettings(
        encoder=str(start(arguments.work)),
        data=data(arguments.data, BATCH * STEPS),
        model={"head": head, "max_length": 80, "scale": 0.5 if head == "emb" else 1.0, **WINDOW},
        negatives=NegativesSettings(
            kind=KINDS[kind],
            count=7,
            depth=16,  # the nearest: other senses of the same word
            encoder=str(arguments.work / "dual-encoder"),
            dev_candidates=32,
        ),
        training=TrainingSettings(
            steps=STEPS if kind == "dense" else STEPS // 3,
            epochs=1,
            batch=BATCH,
            learning_rate=1e-4,
            warmup=0.1,
            evaluations=3 if kind == "dense" else 1,
            dropout=0.0,
            threads=arguments.threads,
        ),
    )


def start(work: Path) -> Path:
    """What both heads start from: the trained dual encoder, which knows the marks and the task.

    It never saw token type 1, which an item has in a pair; that type begins as the other.
    """
    folder = work / "start"
    if not (folder / "tokenizer.json").exists():
        model = DualEncoderModel.from_pretrained(work / "dual-encoder")
        kinds = model.query.encoder.embeddings.token_type_embeddings.weight.data
        kinds[1] = kinds[0]
        save_backbone(model.query.encoder, model.tokenizer.fast, folder)
    return folder


def data(folder: Path, train_queries: int) -> DataSettings:
    """Train domains with enough mentions; their items are what mining has to encode."""
    worlds = sorted((folder / "processed" / "train_worlds").glob("*_mentions.jsonl"))
    counts = {path: sum(1 for _ in path.open(encoding="utf-8")) for path in worlds}
    domains = [
        path.name.removesuffix("_mentions.jsonl")
        for path, count in counts.items()
        if count >= MIN_MENTIONS
    ]
    return DataSettings(
        folder=folder,
        train_domains=tuple(domains),
        train_queries=train_queries,
        dev_queries=200,
    )


def share_mined(work: Path, name: str, kind: str) -> None:
    """Both heads meet the same negatives and the same dev candidates: they are mined once."""
    for other in MODELS[1:]:
        for file, same in (("negatives.npy", other.endswith(f"-{kind}")), ("dev.npy", True)):
            source, target = work / other / RUN / file, work / name / RUN / file
            if same and source.exists() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)


if __name__ == "__main__":
    main()
