"""Late-interaction models in torch and as ONNX folders: one interface, the same answers."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from tiny_models import save_bert

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

import crossknn as ck  # noqa: E402
from crossknn.errors import InputError, ScorerError  # noqa: E402
from crossknn.models.export import export_model  # noqa: E402
from crossknn.models.late.model import (  # noqa: E402
    LateInteractionConfig,
    LateInteractionModel,
)
from crossknn.retrievers.base import KINDS, LateInteraction  # noqa: E402
from crossknn.scorers import OnnxLateInteraction, TorchLateInteraction  # noqa: E402
from crossknn.scorers.late import (  # noqa: E402
    LateInteractionScorer,
    bytes_of_candidate,
)
from crossknn.scorers.opening import bundled_folder  # noqa: E402
from crossknn.types import NO_ITEM, States  # noqa: E402

pytestmark = pytest.mark.torch
ITEMS = [
    "the red oak",
    "seals swam in a lake near the old hill",
    "elm",
    "a tall white gull flew over the stone cave",
    "old crab on the sand",
    "storm",
    "blue whale and the otter",
]
QUERIES = ["the oak", "a gull sat in the dark cave near the river", "whale"]
LISTS = np.array([[0, 1, 2, 3, 4], [6, 5, 0, NO_ITEM, NO_ITEM], [3, 6, NO_ITEM, NO_ITEM, NO_ITEM]])


def make(folder, kind, **changes):
    """An untrained model whose towers differ."""
    bert = save_bert(folder / "bert", positions=128)
    options = {"layers": 1} if kind == "deformer" else {}
    config = {"query_length": 12, "item_length": 14, "options": options} | changes
    model = LateInteractionModel.new(bert, LateInteractionConfig(head=kind, **config)).eval()
    if not model.config.shared:
        with torch.no_grad():
            for parameter in model.item.parameters():
                parameter.mul_(1.2)
    return model


@pytest.fixture(scope="module", params=KINDS)
def served(request, tmp_path_factory):
    """(kind, the torch model as saved, its export)."""
    folder = tmp_path_factory.mktemp(request.param)
    model = make(folder, request.param)
    model.save_pretrained(folder / "torch")
    export_model(folder / "torch", folder / "onnx", "late-interaction")
    return request.param, ck.open_late(folder / "torch"), ck.open_late(folder / "onnx")


@pytest.fixture(scope="module")
def cmc(tmp_path_factory):
    """The folders of a small CMC: torch, onnx."""
    folder = tmp_path_factory.mktemp("cmc")
    make(folder, "cmc").save_pretrained(folder / "torch")
    export_model(folder / "torch", folder / "onnx", "late-interaction")
    return folder


def compared(model, lists=LISTS):
    return model.compare(
        model.encode_queries(QUERIES[: len(lists)]), model.encode_items(ITEMS), lists
    )


def test_torch_and_onnx_agree(served):
    kind, kept, exported = served
    assert (type(kept), type(exported)) == (TorchLateInteraction, OnnxLateInteraction)
    assert kept.kind == exported.kind == kind
    assert kept.dimensions == exported.dimensions
    assert kept.joint == exported.joint == (kind == "cmc")
    assert kept.fingerprint == exported.fingerprint
    for model in (kept, exported):
        assert isinstance(model, LateInteraction)
    for texts, encode in ((QUERIES, "encode_queries"), (ITEMS, "encode_items")):
        one, other = getattr(kept, encode)(texts), getattr(exported, encode)(texts)
        assert one.values.dtype == other.values.dtype
        assert one.values.dtype == (np.float32 if texts is QUERIES else np.float16)
        assert np.array_equal(one.starts, other.starts)
        np.testing.assert_allclose(one.values, other.values, rtol=1e-2, atol=1e-3)
    states = kept.encode_queries(QUERIES), kept.encode_items(ITEMS)
    one, other = kept.compare(*states, LISTS), exported.compare(*states, LISTS)
    assert np.array_equal(np.isfinite(one), LISTS != NO_ITEM)
    there = np.isfinite(one)
    assert one[there].std() > 1e-3
    np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4 * np.abs(one[there]).max())


def test_they_give_what_the_model_gives(served):
    kept = served[1]
    model = kept.model
    rows = [list(model.encoding.texts(texts, queries=q)) for texts, q in ((QUERIES, 1), (ITEMS, 0))]
    with torch.inference_mode():
        query, query_mask = model.states(rows[0], queries=True)
        item, item_mask = model.states(rows[1], queries=False)
        item = item.half().float()  # as an index keeps them
        for q, row in enumerate(LISTS):
            listed = torch.from_numpy(row[row != NO_ITEM])
            expected = model.head(
                query[q : q + 1], query_mask[q : q + 1], item[listed][None], item_mask[listed][None]
            )[0]
            found = compared(kept)[q, : len(listed)]
            scale = float(expected.abs().max())
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * scale)


def test_neither_the_order_nor_padding_nor_other_queries_matter(served):
    for model in served[1:]:
        plain = compared(model)
        scale = np.abs(plain[np.isfinite(plain)]).max()
        order = np.array([4, 2, 0, 3, 1])
        wide = np.full((3, 9), NO_ITEM)
        wide[:, [1, 2, 4, 7, 8]] = LISTS[:, order]
        moved = compared(model, wide)
        assert (moved[wide == NO_ITEM] == -np.inf).all()
        found = moved[:, [1, 2, 4, 7, 8]]
        np.testing.assert_allclose(found, plain[:, order], rtol=1e-4, atol=1e-4 * scale)
        alone = compared(model, LISTS[:1])
        np.testing.assert_allclose(alone, plain[:1], rtol=1e-4, atol=1e-4 * scale)


def test_batches_of_bounded_memory_change_nothing(served, monkeypatch):
    kind = served[0]
    for model in served[1:]:
        plain = compared(model)
        seen = []
        scores = type(model)._scores

        def noted(self, *states, scores=scores, seen=seen):
            seen.append(states[2].shape[:2])
            return scores(self, *states)

        monkeypatch.setattr(type(model), "_scores", noted)
        monkeypatch.setattr(model, "bytes_at_once", 1)
        found = compared(model)
        assert {rows for rows, _ in seen} == {1}
        assert {width for _, width in seen} == ({5, 3, 2} if kind == "cmc" else {1})
        scale = np.abs(plain[np.isfinite(plain)]).max()
        np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-4 * scale)


def test_long_texts_are_cut_and_what_is_no_text_is_refused(served, caplog):
    for model in served[1:]:
        before = model.truncated
        states = model.encode_items([" ".join(ITEMS), "elm"])
        assert model.truncated == before + 1
        assert (states.counts <= 14).all()
        assert "cut 1 of 2 texts to 14 tokens" in caplog.text
        caplog.clear()
        model.encode_items([" ".join(ITEMS)])
        assert (model.truncated, caplog.text) == (before + 2, "")  # an index encodes in many parts
        with pytest.raises(InputError, match="query 1: a text is not a valid string"):
            model.encode_queries(["elm", "\ud800"])


@pytest.mark.parametrize("which", ["torch", "onnx"])
@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0, 1, 0], [1, 2, 3]], "the candidate list of query 0 holds item 0 twice"),
        ([[0, 1], [2, 7]], "names item 7; there are 7 items"),
        ([[0, 1], [-2, 3]], "names item -2"),
        ([[0, 1]], r"have the shape \(1, 2\); there are 2 queries"),
    ],
)
def test_wrong_lists(cmc, which, lists, message):
    model = ck.open_late(cmc / which)
    states = model.encode_queries(QUERIES[:2]), model.encode_items(ITEMS)
    with pytest.raises(InputError, match=message):
        model.compare(*states, np.array(lists))


def test_a_list_that_memory_does_not_allow(cmc, monkeypatch):
    model = ck.open_late(cmc / "onnx")
    states = model.encode_queries(QUERIES), model.encode_items(ITEMS)
    each = bytes_of_candidate("cmc", model.dimensions, 1, 1)
    monkeypatch.setattr(model, "_room", lambda: 4 * each + 1)
    with pytest.raises(InputError, match=r"torch \(cmc\) cannot compare 5 candidates .* is 4 here"):
        model.compare(*states, LISTS)
    monkeypatch.setattr(model, "_room", lambda: None)
    assert np.isfinite(model.compare(*states, LISTS)[0]).all()


class Small(LateInteractionScorer):
    """Fails above so many candidates in all, as a device with little memory does."""

    kind, dimensions, fingerprint, name, bytes_at_once = "poly", 2, "small", "small", 1 << 30

    def __init__(self, most, joint):
        self.most, self.joint = most, joint

    def _states(self, rows, queries):
        pytest.fail("nothing is encoded here")

    def _scores(self, query, query_mask, items, item_mask):
        if items.shape[0] * items.shape[1] > self.most:
            raise MemoryError
        return np.where(item_mask.any(-1), items.sum((2, 3)) * query.sum((1, 2))[:, None], -np.inf)


def test_where_memory_ends_all_the_same_it_goes_on_in_smaller_parts():
    rng = np.random.default_rng(0)
    items = States(rng.normal(size=(40, 2)).astype(np.float16), np.arange(41))
    queries = States(rng.normal(size=(6, 2)).astype(np.float32), np.arange(7))
    lists = np.array([rng.permutation(40)[:20] for _ in range(6)])
    expected = Small(10**6, True).compare(queries, items, lists)
    assert np.array_equal(Small(25, True).compare(queries, items, lists), expected)
    assert np.array_equal(Small(3, False).compare(queries, items, lists), expected)
    with pytest.raises(InputError, match=r"cannot compare 20 candidates .* which is 10 here"):
        Small(13, True).compare(queries, items, lists)
    with pytest.raises(InputError, match=r"cannot compare 1 candidates .* which is 0 here"):
        Small(0, False).compare(queries, items, lists)


def test_scores_that_are_no_numbers_name_the_item():
    items = States(np.ones((3, 2), np.float16), np.arange(4))
    queries = States(np.full((1, 2), np.nan, np.float32), np.arange(2))
    with pytest.raises(ScorerError, match="small gave item 2 the score nan for query 0"):
        Small(9, True).compare(queries, items, np.array([[2, 0]]))


def test_the_export_keeps_the_fingerprint_until_a_file_changes(cmc, tmp_path):
    kept = ck.open_late(cmc / "torch")
    assert ck.open_late(cmc / "onnx").fingerprint == kept.fingerprint
    source = make(tmp_path, "cmc", shared=True).save_pretrained(tmp_path / "shared")
    shared = export_model(source, tmp_path / "one", "late-interaction")
    assert not (shared / "item.onnx").exists()
    assert ck.open_late(shared).fingerprint != kept.fingerprint
    for path in (cmc / "onnx").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    graph = (tmp_path / "compare.onnx").read_bytes()
    (tmp_path / "compare.onnx").write_bytes(graph + b"\x00")
    with pytest.raises(InputError, match=r"compare.onnx is not a model that ONNX Runtime can load"):
        ck.open_late(tmp_path)
    (tmp_path / "compare.onnx").write_bytes(graph)
    (tmp_path / "tokenizer.json").write_text((tmp_path / "tokenizer.json").read_text() + " ")
    assert ck.open_late(tmp_path).fingerprint != kept.fingerprint


def test_the_base_install_serves_the_export(cmc):
    code = f"""
import sys
class Absent:
    def find_spec(self, name, *others):
        absent = ("torch", "transformers", "sentence_transformers", "onnx", "huggingface_hub")
        if name.split(".")[0] in absent:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import crossknn as ck
index = ck.ItemIndex.build({ITEMS!r}, lsa=2)
index.add_late({str(cmc / "onnx")!r})
found = ck.Searcher(index, None, "cmc(retriever=lsa)").search({QUERIES!r}, k=2)
print([hit.position for hits in found for hit in hits])
try:
    ck.open_late({str(cmc / "torch")!r})
except ck.CrossknnError as error:
    print(error)
"""
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    index = ck.ItemIndex.build(ITEMS, lsa=2)
    index.add_late(cmc / "torch")
    found = ck.Searcher(index, None, "cmc(retriever=lsa)").search(QUERIES, k=2)
    assert json.loads(printed[0]) == [hit.position for hits in found for hit in hits]
    assert "needs an extra: run  pip install 'crossknn[torch]'" in printed[1]


def test_what_is_no_late_interaction_model(cmc, tmp_path):
    with pytest.raises(InputError, match="is a late-interaction model, where a cross-encoder is"):
        ck.CrossEncoder(cmc / "torch")
    with pytest.raises(InputError, match="is a late-interaction model, where a cross-encoder is"):
        ck.CrossEncoder(cmc / "onnx")
    with pytest.raises(InputError, match="is a dual encoder, where a late-interaction model is"):
        ck.open_late(bundled_folder("dual-encoder"))
    with pytest.raises(InputError, match="is not a late-interaction model: it has neither"):
        ck.open_late(tmp_path)
    with pytest.raises(InputError, match="there is no model folder"):
        ck.open_late("./absent")
    (tmp_path / "crossknn.json").write_text(
        json.dumps({"format": 1, "kind": "late-interaction", "precision": "float32"})
    )
    with pytest.raises(InputError, match=r"is incomplete: query.onnx is missing"):
        ck.open_late(tmp_path)
    with pytest.raises(InputError, match="is not a crossknn late-interaction model"):
        export_model(tmp_path, tmp_path / "out", "late-interaction")
