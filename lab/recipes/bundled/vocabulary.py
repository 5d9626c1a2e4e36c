"""A smaller WordPiece vocabulary for the bundled models, the inverse document frequencies of its
pieces, and encoders cut down to it and to fewer layers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def prune(
    tokenizer: Tokenizer, texts: Sequence[str], size: int
) -> tuple[list[str], NDArray[np.int64]]:
    """Choose `size` pieces: special ones, single characters, those seen at least twice, then the
    vocabulary's own order.

    BERT's vocabulary is ordered by frequency in English, so its order fills up with common English.
    Returns the pieces and their old ids.
    """
    vocabulary = tokenizer.get_vocab()
    counts: Counter[int] = Counter()
    tokenizer.no_truncation()
    for start in range(0, len(texts), 4096):
        for encoding in tokenizer.encode_batch_fast(
            list(texts[start : start + 4096]), add_special_tokens=False
        ):
            counts.update(encoding.ids)
    by_id = {position: piece for piece, position in vocabulary.items()}
    keep = dict.fromkeys(vocabulary[piece] for piece in SPECIAL)
    for position in sorted(by_id):
        if len(by_id[position].removeprefix("##")) == 1 and by_id[position].isascii():
            keep[position] = None
    frequent = [
        position
        for position, count in counts.most_common()
        if count >= 2 and by_id[position].isascii()
    ]
    for position in [
        *frequent,
        *(p for p in sorted(by_id) if by_id[p].isascii() and not by_id[p].startswith("[unused")),
    ]:
        if len(keep) >= size:
            break
        keep[position] = None
    rest = sorted(set(keep) - {vocabulary[piece] for piece in SPECIAL})
    ids = [vocabulary[piece] for piece in SPECIAL] + rest
    return [by_id[position] for position in ids], np.array(ids, dtype=np.int64)


def pruned_tokenizer(source: Path, pieces: Sequence[str]) -> Tokenizer:
    """The teacher's tokenizer over fewer pieces, with the BERT pair template and without truncation
    or padding."""
    spec = json.loads(source.read_text(encoding="utf-8"))
    place = {piece: position for position, piece in enumerate(pieces)}
    spec["model"]["vocab"] = place
    spec["added_tokens"] = [
        dict(token, id=place[token["content"]])
        for token in spec["added_tokens"]
        if token["content"] in place
    ]
    spec["truncation"] = spec["padding"] = None
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [_special("[CLS]", 0), _sequence("A", 0), _special("[SEP]", 0)],
        "pair": [
            _special("[CLS]", 0),
            _sequence("A", 0),
            _special("[SEP]", 0),
            _sequence("B", 1),
            _special("[SEP]", 1),
        ],
        "special_tokens": {
            piece: {"id": piece, "ids": [place[piece]], "tokens": [piece]}
            for piece in ("[CLS]", "[SEP]")
        },
    }
    return Tokenizer.from_str(json.dumps(spec))


def _special(piece: str, kind: int) -> dict:
    return {"SpecialToken": {"id": piece, "type_id": kind}}


def _sequence(name: str, kind: int) -> dict:
    return {"Sequence": {"id": name, "type_id": kind}}


def inverse_document_frequency(
    tokenizer: Tokenizer, texts: Sequence[str], size: int
) -> NDArray[np.float32]:
    """ln(1 + (n - df + 0.5) / (df + 0.5)) of every piece, as in Lucene's BM25: (size,)."""
    counts = np.zeros(size)
    for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False):
        counts[list(set(encoding.ids))] += 1
    return np.log(1 + (len(texts) - counts + 0.5) / (counts + 0.5)).astype(np.float32)


def prune_vocabulary(encoder: Any, kept_ids: NDArray[np.int64]) -> None:
    """Keep the given rows (v',) of a BertModel's word embeddings, in that order."""
    old = encoder.embeddings.word_embeddings.weight.data
    encoder.embeddings.word_embeddings = torch.nn.Embedding.from_pretrained(
        old[torch.from_numpy(kept_ids)].clone(), freeze=False, padding_idx=0
    )
    encoder.config.vocab_size = len(kept_ids)


def keep_layers(encoder: Any, layers: tuple[int, ...]) -> None:
    """Keep the given transformer layers of a BertModel, in that order."""
    kept = [encoder.encoder.layer[position] for position in layers]
    encoder.encoder.layer = torch.nn.ModuleList(kept)
    encoder.config.num_hidden_layers = len(layers)
