"""The last layer computed only where it is read gives the scores of the whole model."""

from __future__ import annotations

import pytest
from tiny_models import save_bert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from crossknn.models.cross_encoder import (  # noqa: E402
    CrossEncoderConfig,
    CrossEncoderModel,
    partial,
)

pytestmark = pytest.mark.torch
WINDOW = {"query_length": 20, "item_length": 20, "max_length": 48}


def inputs(model, seed=0, rows=7, length=24):
    """Random pairs with marks, separators and padding, and the item's tokens of type 1."""
    generator = torch.Generator().manual_seed(seed)
    size = model.tokenizer.fast.get_vocab_size()
    ids = torch.randint(8, size, (rows, length), generator=generator)
    ids[:, 0] = model.tokenizer.fast.token_to_id("[CLS]")
    for place, mark in zip((2, 4, 14), model.tokenizer.marks, strict=False):
        ids[:, place] = mark
    ids[:, 9] = model.tokenizer.separator
    kinds = torch.zeros_like(ids)
    kinds[:, 10:] = 1
    mask = torch.ones_like(ids)
    for row in range(rows):
        mask[row, length - row :] = 0
        kinds[row, length - row :] = 0
    return ids, mask, kinds


@pytest.mark.parametrize(
    "settings",
    [
        {"head": "emb", "marked": True},
        {"head": "emb"},
        {"head": "cls"},
        {"head": "cls", "pooler": False},
        {"head": "emb", "marked": True, "item_position": 20, **WINDOW},
    ],
)
def test_the_same_scores_and_gradients(tmp_path, settings):
    config = CrossEncoderConfig(**{"max_length": 48, **settings})
    model = CrossEncoderModel.new(save_bert(tmp_path / "bert"), config).eval()
    found = inputs(model)
    whole, part = model(*found), partial(model).eval()(*found)
    assert whole.std() > 1e-3
    torch.testing.assert_close(part, whole, rtol=1e-5, atol=1e-5)
    parameters = [p for p in model.parameters() if p.requires_grad]
    for one, other in zip(
        torch.autograd.grad(whole.sum(), parameters, allow_unused=True),
        torch.autograd.grad(part.sum(), parameters, allow_unused=True),
        strict=True,
    ):
        if one is not None:
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def test_a_sequence_classification_model(tmp_path):
    folder = save_bert(tmp_path / "bert")
    torch.manual_seed(1)
    model = transformers.BertForSequenceClassification.from_pretrained(folder, num_labels=1).eval()
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    ids, kinds = torch.tensor([[2, 9, 10, 3, 0], [2, 11, 3, 12, 3]]), torch.zeros((2, 5), dtype=int)
    whole = model(input_ids=ids, attention_mask=mask, token_type_ids=kinds).logits[:, 0]
    torch.testing.assert_close(partial(model).eval()(ids, mask, kinds), whole, rtol=1e-5, atol=1e-5)


def test_what_reads_everything_or_is_no_bert_stays_whole(tmp_path):
    folder = save_bert(tmp_path / "bert")
    config = CrossEncoderConfig(head="interaction", max_length=48)
    assert partial(CrossEncoderModel.new(folder, config)) is None
    small = transformers.RobertaConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_labels=1
    )
    assert partial(transformers.RobertaForSequenceClassification(small)) is None
