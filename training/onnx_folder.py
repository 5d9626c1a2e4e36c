"""Run an exported folder with onnxruntime alone, for measuring it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
from common import WORKERS, token_batches
from numpy.typing import NDArray
from tokenizers import Tokenizer


class OnnxFolder:
    """A cross-encoder or dual encoder folder; one session, several Python threads."""

    def __init__(self, folder: Path) -> None:
        self.settings = json.loads((folder / "crossknn.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["SkipLayerNormFusion"],
        )
        special = ("[CLS]", "[SEP]")
        self.cls, self.sep = (self.tokenizer.token_to_id(token) for token in special)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids without special tokens."""
        return [
            encoding.ids
            for encoding in self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ]

    def scores(
        self, queries: list[list[int]], items: list[list[int]], query: NDArray, item: NDArray
    ) -> NDArray[np.float32]:
        """Scores of p pairs given by positions into token id lists: (p,)."""
        limit = self.settings["max_length"]
        rows = []
        for q, i in zip(query.tolist(), item.tolist(), strict=True):
            a = queries[q][: limit // 2]
            b = items[i][: limit - 3 - len(a)]
            rows.append(([self.cls, *a, self.sep, *b, self.sep], len(a) + 2))
        return self._run(rows, ())

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors of n texts: (n, d)."""
        limit = self.settings["max_length"]
        rows = [[self.cls, *ids[: limit - 2], self.sep] for ids in self.ids(texts)]
        return self._run([(row, len(row)) for row in rows], (self.settings["dimensions"],))

    def _run(
        self, rows: list[tuple[list[int], int]], shape: tuple[int, ...]
    ) -> NDArray[np.float32]:
        out = np.zeros((len(rows), *shape), dtype=np.float32)

        def one(chosen: NDArray[np.int64]) -> None:
            width = max(len(rows[row][0]) for row in chosen)
            ids, mask, kinds = (np.zeros((len(chosen), width), dtype=np.int64) for _ in range(3))
            for place, row in enumerate(chosen):
                tokens, start = rows[row]
                ids[place, : len(tokens)] = tokens
                mask[place, : len(tokens)] = 1
                kinds[place, start : len(tokens)] = 1
            feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}
            names = {value.name for value in self.session.get_inputs()}
            out[chosen] = self.session.run(
                None, {key: value for key, value in feed.items() if key in names}
            )[0]

        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(one, token_batches(np.array([len(row) for row, _ in rows]), 512)))
        return out
