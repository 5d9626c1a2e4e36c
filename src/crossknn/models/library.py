"""Load sentence-transformers models without running their code, pad them so that scores do not
depend on the batch, and compute their fingerprints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from inspect import signature
from typing import Any, Literal

import numpy as np

from crossknn.errors import InputError, needs_extra
from crossknn.models.folder import check_outputs, refusing

_YOURSELF = "load it with sentence-transformers yourself and pass the loaded model"
_ITEM_PROMPTS = ("document", "passage", "corpus")
_PROBES = [("red", "tree"), ("how are lists sorted", "sorted gives a new list of the items. " * 2)]
_SAME = 1e-2
"""In bfloat16, scores may differ by this much between batches; padding on the wrong side changes
them far more."""


def open_library(
    kind: Literal["SentenceTransformer", "CrossEncoder"], source: str, what: str, **options: Any
) -> Any:
    """Load the model in a folder with sentence-transformers; errors call it `what`.

    Raises InputError if it cannot be loaded, or would need to run Python code from its folder;
    MissingExtraError without sentence-transformers.
    """
    with needs_extra(what):
        import sentence_transformers as library
    if "'trust_remote_code': True" in repr(options):  # at any depth
        raise InputError(
            f"{what} cannot be loaded with trust_remote_code: crossknn never runs Python code from "
            f"a model folder; {_YOURSELF}"
        )
    try:
        with refusing(f"cannot load {what}"):
            return getattr(library, kind)(source, **options)
    except InputError as error:
        if "trust_remote_code" in str(error.__cause__):
            raise InputError(f"{error}; {_YOURSELF}") from error.__cause__
        raise


def logits_options(model: Any, name: str, batch: int) -> dict[str, Any]:
    """Prepare a loaded cross-encoder so that no score depends on the batch, and return the keyword
    arguments with which its `predict` gives raw logits. Raises InputError unless it has one output.
    """
    import torch

    check_outputs(model.num_labels, name)
    raw = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False, "batch_size": batch}
    last = list(model)[-1]
    word = getattr(last, "true_token_id", None)
    if word and word == last.false_token_id:
        raise InputError(
            f"the tokenizer of {name} has neither of the tokens whose logits give the score"
        )
    if word is None:
        choose_padding_side(model, lambda pairs: model.predict(pairs, **raw))
    else:  # the library reads the last token's logits, and pads on the left
        count_positions(model)
    return raw


def own_prompts(model: Any) -> tuple[str, str]:
    """Return the prompts that a bi-encoder's author puts before queries and before items, or "".

    `encode_document` would not do: it stops at the empty "document" prompt that the library adds to
    every model.
    """
    item = next((model.prompts[name] for name in _ITEM_PROMPTS if model.prompts.get(name)), "")
    return str(model.prompts.get("query") or ""), str(item)


def pools_tokens(model: Any) -> bool:
    """Whether vectors are pooled from the tokens' states. Then BERT's own pooler, which the library
    initializes at random if the folder has none, is not used."""
    return getattr(model[0], "module_output_name", None) == "token_embeddings"


def choose_padding_side(model: Any, run: Callable[[list[tuple[str, str]]], Any]) -> None:
    """Choose the padding side: right, where most models number positions and read [CLS] as if there
    were no padding, or left if only that leaves scores unchanged (XLNet).

    `run` computes scores or vectors of pairs (p, ...) as one batch. On the correct side the scores
    of a pair do not change when a longer pair joins its batch.
    """
    tokenizer, moved = model.tokenizer, dict[str, float]()
    if not hasattr(tokenizer, "padding_side"):
        return
    given = tokenizer.padding_side
    try:
        for side in ("right", "left"):
            tokenizer.padding_side = side
            alone = np.asarray(run(_PROBES[:1]), np.float64)[0]
            moved[side] = float(np.abs(np.asarray(run(_PROBES), np.float64)[0] - alone).max())
            if moved[side] <= _SAME * (1 + float(np.abs(alone).max())):
                return
        tokenizer.padding_side = min(moved, key=lambda side: moved[side])
    except Exception:  # a model that cannot score says why when it is asked to
        tokenizer.padding_side = given


def count_positions(model: Any) -> None:
    """Number a text's positions from its first token instead of from the padding on its left;
    otherwise learned positions would make scores depend on the longest text of the batch."""
    first, inner = model[0], getattr(model[0], "auto_model", None)
    if inner is None or "position_ids" not in signature(inner.forward).parameters:
        return
    config = inner.config.get_text_config()
    if any(getattr(config, name, None) for name in ("rope_parameters", "rope_theta")):
        return  # rotary positions only count from one token to the other

    def positions(_: Any, given: tuple[dict[str, Any], ...]) -> None:
        mask = given[0].get("attention_mask")
        if mask is not None and mask.dim() == 2:
            given[0].setdefault("position_ids", (mask.long().cumsum(1) - 1).clamp(min=0))

    first.register_forward_pre_hook(positions)  # the library calls the model's own `forward`


def model_hash(model: Any, unread: str | None = None) -> str:
    """Compute a hash of a model's tokenizer and weights, except weights whose name contains
    `unread`."""
    fast = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)
    # Every call changes truncation and padding; the length limit is hashed elsewhere.
    state = {"truncation": None, "padding": None}
    rules = json.dumps(json.loads(fast.to_str()) | state, sort_keys=True) if fast else ""
    return state_hash(model, rules, unread=unread)


def state_hash(module: Any, *texts: str, unread: str | None = None) -> str:
    """Compute a hash of texts and a torch module's weights, except those whose name contains
    `unread`."""
    import torch

    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(module.state_dict().items()):
        if unread is None or unread not in name:
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            flat = tensor.detach().cpu().reshape(-1).contiguous()
            digest.update(flat.view(torch.uint8).numpy())
    for text in texts:
        digest.update(text.encode())
    return digest.hexdigest()


def settings(model: Any) -> str:
    """Return as JSON the settings that affect scores besides weights, tokenizer and prompts: those
    of modules, the length that vectors are cut to, the chat template."""
    modules = [(type(module).__name__, module.get_config_dict()) for module in model]
    size, template = getattr(model, "truncate_dim", None), None
    if "message" in (getattr(model[0], "modality_config", None) or ()):
        template = model.tokenizer.chat_template
    return json.dumps([modules, size, template], default=lambda value: type(value).__name__)
