"""Models of sentence-transformers as their authors meant them: prompts and settings, but no code.

The library itself is imported only to load a model.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from crossknn.errors import InputError, MissingExtraError
from crossknn.models.hub import first_line

_MAJOR = 6
_YOURSELF = "load it with sentence-transformers yourself and pass the loaded model"
_ITEM_PROMPTS = ("document", "passage", "corpus")
_SETTINGS = (
    "pooling_mode",
    "include_prompt",
    "activation_function",
    "true_token_id",
    "false_token_id",
    "query_length",
    "document_length",
    "query_expansion",
)


def open_library(
    kind: Literal["SentenceTransformer", "CrossEncoder"],
    source: str,
    what: str,
    **options: Any,
) -> Any:
    """The model in a folder, loaded by sentence-transformers; `what` is its name in errors.

    Raises InputError if it cannot be loaded, or not without running Python code that it brings;
    MissingExtraError without sentence-transformers.
    """
    try:
        import sentence_transformers as library
    except ImportError as error:
        raise MissingExtraError(what, "torch") from error
    if int(library.__version__.split(".")[0]) < _MAJOR:
        raise InputError(
            f"{what} needs sentence-transformers {_MAJOR} or later, and {library.__version__} is "
            f"installed, which runs Python code from model folders: pip install 'crossknn[torch]'"
        )
    given = [options, *(value for value in options.values() if isinstance(value, dict))]
    if any(group.get("trust_remote_code") for group in given):
        raise InputError(
            f"{what} cannot be loaded with trust_remote_code: crossknn never runs Python code from "
            f"a model folder; {_YOURSELF}"
        )
    try:
        return getattr(library, kind)(source, **options)
    except Exception as error:
        advice = f"; {_YOURSELF}" if "trust_remote_code" in str(error) else ""
        raise InputError(f"cannot load {what}: {first_line(error)}{advice}") from error


def own_prompts(model: Any) -> tuple[str, str]:
    """The texts that a bi-encoder's author puts before queries and before items, or "".

    An item's prompt is the first of "document", "passage" and "corpus" that is not empty: the
    library's `encode_document` stops at the empty "document" that it adds to every model itself.
    """
    prompts = getattr(model, "prompts", None) or {}
    item = next((prompts[name] for name in _ITEM_PROMPTS if prompts.get(name)), "")
    return str(prompts.get("query") or ""), str(item)


def reads_messages(model: Any) -> bool:
    """Whether a model's texts go through its tokenizer's chat template."""
    return "message" in (getattr(model[0], "modality_config", None) or ())


def settings(model: Any) -> str:
    """What a model's answers depend on beside weights, tokenizer and prompts, as JSON; or "".

    The settings of its modules, the length its vectors are cut to, and its chat template.
    """
    if not hasattr(model, "__iter__"):
        return ""
    modules = [
        (
            type(module).__name__,
            {k: v for k in _SETTINGS if (v := getattr(module, k, None)) is not None},
        )
        for module in model
    ]
    size = getattr(model, "truncate_dim", None)
    template = model.tokenizer.chat_template if reads_messages(model) else None
    if len(modules) == 1 and not modules[0][1] and size is None and template is None:
        return ""
    return json.dumps([modules, size, template], default=lambda value: type(value).__name__)
