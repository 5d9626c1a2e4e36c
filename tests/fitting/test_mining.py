"""Mining: rows by their definition, in the columns that losses read, and runs that go on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_models import save_bert

import crossknn as ck
from crossknn.cli.app import run

WORDS = ["zip", "unzip", "file", "list", "sort", "lock", "thread", "read", "write", "socket"]
TEXTS = [f"{a} the {b}" for a in WORDS for b in WORDS if a != b][20:80]
QUERIES = {"q0": "zip the list", "q1": "sort the thread", "q2": "copy the socket"}


def score(pairs):
    """Scores of a tiny cross-encoder: letters that texts share, some below zero."""
    return [len(set(q) & set(t)) - 10 + sum(map(ord, q + t)) % 89 / 89 for q, t in pairs]


def ranked(query):
    """Positions of all items, best first."""
    return np.argsort(-np.float32(score([(query, text) for text in TEXTS])), kind="stable")


RELEVANT = {"q0": ranked(QUERIES["q0"])[[1, 8]].tolist(), "q2": ranked(QUERIES["q2"])[[4]].tolist()}
QRELS = {q: {str(item): 1 for item in items} for q, items in RELEVANT.items()}
QRELS["q0"][str(ranked(QUERIES["q0"])[0])] = 0
QRELS["other"] = {"1": 1}
TEACHER = ck.CallableScorer(score, "letters", batch=8)


@pytest.fixture
def index():
    return ck.ItemIndex.build(TEXTS, encoder=None, lsa=4)


def test_rows_are_the_best_items_and_those_below_them_by_the_margin(index):
    rows = ck.TrainingRows(positives=2, negatives=5, range_min=3, absolute_margin=0.5)
    found = ck.mine(index, TEACHER, QUERIES, rows, budget=60, method="exact").rows
    wanted = []
    for query in QUERIES.values():
        pairs = [(TEXTS[i], score([(query, TEXTS[i])])[0]) for i in ranked(query)]
        below = [pair for pair in pairs[2:] if pair[1] <= pairs[1][1] - 0.5]
        wanted += [(query, p, n, a - b) for p, a in pairs[:2] for n, b in below[3:8]]
    for row, (*texts, margin) in zip(found, wanted, strict=True):
        assert [row["query"], row["positive"], row["negative"]] == texts
        assert row["label"] == pytest.approx(margin, abs=1e-5)


def test_judged_items_are_the_positives_and_are_scored_beside_the_budget(index):
    rows = ck.TrainingRows(format="list", negatives=4, absolute_margin=0.0)
    found = ck.mine(
        index, TEACHER, QUERIES, rows, qrels=QRELS, budget=15, method="rerank(retriever=bm25)"
    )
    assert (found.queries, found.unjudged, found.failed) == (2, 1, 0)
    assert found.n_scored == 30
    assert 30 < found.n_calls <= 33
    for row, (query, right) in zip(found.rows, RELEVANT.items(), strict=True):
        assert row["query"] == QUERIES[query]
        assert set(row["docs"][: len(right)]) == {TEXTS[i] for i in right}
        known = score([(row["query"], text) for text in row["docs"]])
        np.testing.assert_allclose(row["labels"], known, atol=1e-5)
        assert max(known[len(right) :]) <= min(known[: len(right)])


@pytest.mark.parametrize("format", ["triplet", "n-tuple"])
def test_formats_hold_the_same_texts_in_the_columns_that_losses_read(index, format):
    def made(format):
        return ck.mine(index, TEACHER, QUERIES, ck.TrainingRows(format=format), budget=20).rows

    margins, found = made("margin"), made(format)
    assert list(margins[0]) == ["query", "positive", "negative", "label"]
    if format == "triplet":
        assert found == [{k: row[k] for k in ("query", "positive", "negative")} for row in margins]
        return
    names = [f"negative_{i}" for i in range(1, 9)]
    assert [list(row) for row in found] == 3 * [["query", "positive", *names, "label"]]
    pairs = [(row["negative"], row["label"]) for row in margins]
    apart = [[row["label"][0] - other for other in row["label"][1:]] for row in found]
    assert [row[name] for row in found for name in names] == [text for text, _ in pairs]
    np.testing.assert_allclose(np.ravel(apart), [label for _, label in pairs])


def test_random_negatives_come_from_the_range_and_follow_the_seed(index):
    rows = ck.TrainingRows(
        negatives=4, range_min=2, range_max=12, max_score=-0.5, sampling_strategy="random"
    )
    drawn = [
        [row["negative"] for row in ck.mine(index, TEACHER, QUERIES, rows, budget=40, seed=s).rows]
        for s in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    for q, query in enumerate(QUERIES.values()):
        hits = ck.Searcher(index, TEACHER).search(query, k=40, budget=40)[0]
        window = [hit.text for hit in hits[1:] if hit.score <= -0.5][2:12]
        part = drawn[0][4 * q : 4 * q + 4]
        assert part == [text for text in window if text in part] != window[:4]


def test_a_relative_margin_is_a_share_of_the_size_of_the_positives_score(index):
    rows = ck.TrainingRows(absolute_margin=None, relative_margin=0.3, format="list")
    found = ck.mine(index, TEACHER, QUERIES, rows, budget=60, method="exact").rows
    assert len(found) == 3
    assert any(row["labels"][0] < 0 for row in found)
    for row in found:
        best = row["labels"][0]
        assert max(row["labels"][1:]) <= best - 0.3 * abs(best)


def test_no_text_is_a_negative_of_itself():
    index = ck.ItemIndex.build(TEXTS[:10] * 2, encoder=None, lsa=4)
    rows = ck.TrainingRows(absolute_margin=None, negatives=9, format="list")
    for qrels in (None, {"q0": {"3": 1}}):
        (row, *_) = ck.mine(index, TEACHER, QUERIES, rows, qrels=qrels, budget=20).rows
        assert sorted(row["docs"]) == sorted(TEXTS[:10])


def test_with_fusion_scores_are_final_ones(index):
    ck.fit_fusion(index, TEACHER, ["read the number", "lock the tree"])
    fuse = {"lsa": 0.5, "bm25": 1}
    rows = ck.TrainingRows(format="list", absolute_margin=None, negatives=20)
    searcher = ck.Searcher(index, TEACHER, fuse=fuse)
    for qrels in (None, QRELS):
        for row in ck.mine(index, TEACHER, QUERIES, rows, qrels=qrels, budget=60, fuse=fuse).rows:
            hits = searcher.search(row["query"], k=60, budget=60)[0]
            final = {hit.text: hit.final_score for hit in hits}
            np.testing.assert_allclose(row["labels"], [final[t] for t in row["docs"]], rtol=1e-5)


def test_an_interrupted_run_goes_on_with_the_scores_it_has(index, tmp_path):
    asked = []

    def interrupted(pairs):
        asked.extend(pairs)
        if len(asked) > 40:
            raise KeyboardInterrupt
        return score(pairs)

    ck.ItemIndex.build(TEXTS, encoder=None, lsa=4).save(tmp_path / "index")
    opened, whole = (
        ck.ItemIndex.load(tmp_path / "index"),
        ck.mine(index, TEACHER, QUERIES, budget=30),
    )
    with pytest.raises(KeyboardInterrupt):
        ck.mine(opened, ck.CallableScorer(interrupted, "letters", batch=8), QUERIES, budget=30)
    kept = len(opened.scores)
    assert 0 < kept < 40
    found = ck.mine(ck.ItemIndex.load(tmp_path / "index"), TEACHER, QUERIES, budget=30)
    assert (found.n_calls, found.n_scored) == (90 - kept, 90)
    assert found.rows == whole.rows


def test_a_query_that_cannot_be_scored_is_left_out_and_counted(index):
    def failing(pairs):
        known = zip(pairs, score(pairs), strict=True)
        return [np.nan if "sort" in query else value for (query, _), value in known]

    found = ck.mine(index, ck.CallableScorer(failing, "failing"), QUERIES, budget=20)
    assert (found.queries, found.failed) == (2, 1)
    assert "nan" in found.error
    assert {row["query"] for row in found.rows} == {QUERIES["q0"], QUERIES["q2"]}
    with pytest.raises(ck.ScorerError, match="nan"):
        ck.mine(index, ck.CallableScorer(failing, "failing"), QUERIES["q1"], budget=20)


BAD = {
    "one of margin, triplet": lambda index: ck.TrainingRows(format="pairs"),
    "one of top, random": lambda index: ck.TrainingRows(sampling_strategy="hard"),
    "negatives is 0": lambda index: ck.TrainingRows(negatives=0),
    "range_max is 9": lambda index: ck.TrainingRows(range_min=4, range_max=9),
    "absolute_margin is nan": lambda index: ck.TrainingRows(absolute_margin=np.nan),
    "budget is 8": lambda index: ck.mine(index, TEACHER, QUERIES, budget=8),
    "ids agree": lambda index: ck.mine(index, TEACHER, QUERIES, qrels={"q9": {"1": 1}}),
    "no item": lambda index: ck.mine(index, TEACHER, QUERIES, qrels={"q1": {"99": 1}}),
    "lower the margin": lambda index: ck.mine(
        index, TEACHER, QUERIES, ck.TrainingRows(absolute_margin=99.0)
    ),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_sentence(index, words):
    with pytest.raises(ck.InputError, match=words) as caught:
        BAD[words](index)
    assert len(str(caught.value).splitlines()) == 1


def test_the_command_writes_what_the_function_makes(index, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    texts = [f"{t} and more" for t in TEXTS[:20]]
    ck.ItemIndex.build(texts, encoder=None, lsa=4).save("docs.index")
    (tmp_path / "queries.txt").write_text("zip it\nsort it\n")
    asked = ["mine", "docs.index", "--queries", "queries.txt", "--out", "rows.jsonl", "--json"]
    assert run([*asked, "--format", "n-tuple", "--negatives", "3", "--budget", "12"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["queries"], told["n_scored"]) == (2, 2, 24)
    rows = ck.TrainingRows(format="n-tuple", negatives=3)
    found = ck.mine(
        ck.ItemIndex.load("docs.index"), ck.CrossEncoder(), ["zip it", "sort it"], rows, budget=12
    )
    assert found.n_calls == 0
    assert [json.loads(row) for row in (tmp_path / "rows.jsonl").open()] == found.rows


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("format", ["margin", "n-tuple"])
def test_losses_of_sentence_transformers_read_the_rows(index, tmp_path, format):
    """The margin loss of a batch is the mean squared error of the student's margins."""
    torch = pytest.importorskip("torch")
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import losses, modules

    folder = str(save_bert(tmp_path / "bert"))
    parts = [modules.Transformer(folder), modules.Pooling(16)]
    student = st.SentenceTransformer(modules=parts, device="cpu")
    rows = ck.mine(index, TEACHER, QUERIES, ck.TrainingRows(format=format), budget=20).rows
    *columns, label = rows[0]
    labels = torch.tensor([row[label] for row in rows])
    texts = [[row[column] for row in rows] for column in columns]
    features = [student.preprocess(column) for column in texts]
    query, right, *wrong = (torch.from_numpy(student.encode(column)) for column in texts)
    student.eval()
    with torch.inference_mode():
        found = losses.MarginMSELoss(student)(features, labels)
        if format == "n-tuple":
            kl = losses.DistillKLDivLoss(student)(features, labels)
            own = torch.stack([(query * item).sum(-1) for item in (right, *wrong)], 1)
            wanted = (labels.softmax(1) * (labels.log_softmax(1) - own.log_softmax(1))).sum(1)
            torch.testing.assert_close(kl, wanted.mean())
            labels = labels[:, :1] - labels[:, 1:]
    margins = torch.stack([(query * (right - item)).sum(-1) for item in wrong], 1)
    torch.testing.assert_close(found, (margins - labels.reshape(margins.shape)).square().mean())
