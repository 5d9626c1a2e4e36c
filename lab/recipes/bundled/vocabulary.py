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
from tokenizers.processors import TemplateProcessing

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
    by_id = {position: piece for piece, position in vocabulary.items() if piece.isascii()}
    counts: Counter[int] = Counter()
    tokenizer.no_truncation()
    for start in range(0, len(texts), 4096):
        batch = list(texts[start : start + 4096])
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            counts.update(encoding.ids)
    special = [vocabulary[piece] for piece in SPECIAL]
    characters = [p for p in sorted(by_id) if len(by_id[p].removeprefix("##")) == 1]
    frequent = [p for p, count in counts.most_common() if count >= 2 and p in by_id]
    others = [p for p in sorted(by_id) if not by_id[p].startswith("[unused")]
    chosen = dict.fromkeys([*special, *characters])
    for position in [*frequent, *others]:
        if len(chosen) >= size:
            break
        chosen[position] = None
    ids = special + sorted(set(chosen) - set(special))
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
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(piece, place[piece]) for piece in ("[CLS]", "[SEP]")],
    )
    return tokenizer


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
