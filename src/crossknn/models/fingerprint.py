"""What tells one trained model from another."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


def weights_hash(model: Any) -> str:
    """Hash of every weight, the tokenizer and the settings of a model of ours."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    digest.update(model.fast_tokenizer.to_str().encode())
    digest.update(repr(model.config).encode())
    return digest.hexdigest()
