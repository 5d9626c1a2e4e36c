"""BERTs from bare weights: their shapes say what they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer as FastTokenizer

from crossknn.data.marks import MARKS
from crossknn.errors import InputError
from crossknn.models.backbone import add_marks, open_tokenizer
from crossknn.models.hub import first_line
from crossknn.models.pickles import Checkpoint, Stored, tensors_of

_HEAD_WIDTH = 64
_WORDS = "embeddings.word_embeddings.weight"
_SHAPES = {
    "vocab_size": (_WORDS, 0),
    "hidden_size": (_WORDS, 1),
    "max_position_embeddings": ("embeddings.position_embeddings.weight", 0),
    "type_vocab_size": ("embeddings.token_type_embeddings.weight", 0),
    "intermediate_size": ("encoder.layer.0.intermediate.dense.weight", 0),
}
_LAYER = re.compile(r"encoder\.layer\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The tensors of a checkpoint by name, without the trainer's `model.` before it."""

    checkpoint: Checkpoint
    stored: Mapping[str, Stored] = field(repr=False)
    layout: str = ""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Raises InputError if the checkpoint holds no tensors."""
        found = tensors_of(checkpoint.content)
        if not found:
            raise InputError(f"{checkpoint.path} holds no weights: a state_dict is needed")
        return cls(
            checkpoint=checkpoint,
            stored={name.removeprefix("model."): value for name, value in found.items()},
        )

    def named(self, layout: str) -> Self:
        """The same weights, of a known layout: errors name it."""
        return type(self)(checkpoint=self.checkpoint, stored=self.stored, layout=layout)

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    def under(self, prefix: str) -> dict[str, Stored]:
        """Those whose name begins with `prefix`, without it."""
        return {
            name.removeprefix(prefix): value
            for name, value in self.stored.items()
            if name.startswith(prefix)
        }

    def check_prefixes(self, prefixes: tuple[str, ...], names: tuple[str, ...]) -> None:
        """Raises InputError unless all lie under the prefixes but `names`, and all are there."""
        rest = {name for name in self.stored if not name.startswith(prefixes)}
        absent = {f"{prefix}*" for prefix in prefixes if not self.under(prefix)}
        absent |= set(names) - rest
        if absent or rest - set(names):
            raise refuse(f"{self.path} is no {self.layout} checkpoint", absent, rest - set(names))


def bert(
    weights: Weights, prefix: str, base: str | Path, *, pooler: bool = False
) -> tuple[Any, FastTokenizer]:
    """The BERT under `prefix` without its pooler, and the marked tokenizer of `base`.

    `pooler` says whether its weights must be there. Raises InputError for another architecture.
    """
    from transformers import AutoModel

    found = {
        name: value
        for name, value in weights.under(prefix).items()
        if not name.endswith("position_ids") and (pooler or not name.startswith("pooler."))
    }
    dense = {"pooler.dense.weight", "pooler.dense.bias"} if pooler else set()
    needed = {name for name, _ in _SHAPES.values()} | dense
    about = f"{weights.path} is no {weights.layout} checkpoint of a BERT"
    if needed - set(found):
        absent = {prefix + name for name in needed - set(found)}
        raise refuse(about, absent, {prefix + name for name in found if not name.startswith("enc")})
    encoder = AutoModel.from_config(_config(weights, found, base), attn_implementation="sdpa")
    encoder.pooler = None
    wanted = set(encoder.state_dict())
    absent, foreign = wanted - set(found), set(found) - wanted - dense
    if absent or foreign:
        raise refuse(about, {prefix + n for n in absent}, {prefix + n for n in foreign})
    load(weights, encoder, {name: prefix + name for name in wanted})
    return encoder, _tokenizer(weights, base, encoder)


def load(weights: Weights, module: Any, names: Mapping[str, str]) -> None:
    """Fill a module: its names -> the checkpoint's. Raises InputError for another shape."""
    expected = module.state_dict()
    for own, name in names.items():
        shape, wanted = tuple(weights.stored[name].shape), tuple(expected[own].shape)
        if shape != wanted:
            raise InputError(f"{weights.path}: {name} has the shape {shape}, expected {wanted}")
    checkpoint = weights.checkpoint
    module.load_state_dict(
        {own: checkpoint.tensor(weights.stored[name]) for own, name in names.items()}
    )


def refuse(about: str, absent: set[str], foreign: set[str]) -> InputError:
    """The error that names keys that are missing and keys that do not belong."""
    parts = [f"it lacks {_few(absent)}"] if absent else []
    parts += [f"it has {_few(foreign)}, which {_belong(foreign)}"] if foreign else []
    return InputError(f"{about}: {' and '.join(parts)}")


def _few(names: set[str], count: int = 3) -> str:
    first = sorted(names)[:count]
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(first) + more


def _belong(names: set[str]) -> str:
    return "does not belong" if len(names) == 1 else "do not belong"


def _config(weights: Weights, found: Mapping[str, Stored], base: str | Path) -> Any:
    """The configuration of `base`, which must agree with the shapes; without one, theirs."""
    from transformers import AutoConfig, BertConfig

    sizes = {size: found[name].shape[axis] for size, (name, axis) in _SHAPES.items()}
    sizes["num_hidden_layers"] = len({m[1] for name in found if (m := _LAYER.match(name))})
    if Path(base).is_dir() and not (Path(base) / "config.json").is_file():
        heads, rest = divmod(sizes["hidden_size"], _HEAD_WIDTH)
        if rest:
            raise InputError(
                f"{weights.path} has a width of {sizes['hidden_size']}, which does not say how "
                f"many attention heads it has: put the config.json of its encoder into {base}"
            )
        return BertConfig(**sizes, num_attention_heads=heads)
    try:
        config = AutoConfig.from_pretrained(str(base), trust_remote_code=False)
    except Exception as error:
        raise InputError(f"cannot read the configuration of {base}: {first_line(error)}") from error
    if config.model_type != "bert":
        raise InputError(f"{base} is a {config.model_type}, and {weights.path} holds a BERT")
    for size, value in sizes.items():
        if getattr(config, size) != value:
            raise InputError(
                f"{weights.path} was not trained from {base}: {size} is {value} there and "
                f"{getattr(config, size)} here"
            )
    return config


def _tokenizer(weights: Weights, base: str | Path, encoder: Any) -> FastTokenizer:
    fast = open_tokenizer(base).backend_tokenizer
    size = encoder.get_input_embeddings().num_embeddings
    unused = [f"[unused{place}]" for place in range(len(MARKS))]
    if not any(
        all(fast.token_to_id(name) is not None for name in kind) for kind in (MARKS, unused)
    ):
        raise InputError(
            f"the tokenizer of {base} has no {', '.join(unused)}, with which {weights.path} was "
            "trained to mark mentions and titles: give its own encoder"
        )
    fast.no_truncation()
    fast.no_padding()
    marked = add_marks(fast, encoder) if fast.get_vocab_size() <= size else fast
    if marked.get_vocab_size() > size:
        raise InputError(
            f"the tokenizer of {base} has {marked.get_vocab_size()} tokens, and {weights.path} "
            f"vectors for {size}: give its own encoder"
        )
    return marked
