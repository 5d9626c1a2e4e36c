"""The sample in the package, trials of reranking and searching at equal calls, and their page."""

import random
import re
import time
from itertools import product

import numpy as np
import pytest
from tiny_models import jsonl

import crossknn as ck
from crossknn.cli.app import run
from crossknn.errors import InputError
from crossknn.trial.data import Plan, first_sentence, questions_from
from crossknn.trial.result import RETURNED, Trial


@pytest.fixture(scope="module")
def sample():
    return ck.sample()


@pytest.fixture(scope="module")
def trial(sample):
    return Trial.run(sample.index, sample.queries, sample.scores, sample.qrels, budget=50)


def test_the_sample_is_what_it_says(sample):
    m, n = sample.scores.shape
    assert (m, n) == (len(sample.queries), sample.index.n) == (60, 11_587)
    assert all(len(sample.qrels[query]) == 1 for query in sample.queries.ids)
    own = ck.DualEncoder().encode_items(sample.index.items.texts[:20])
    assert (np.sum(own * sample.index.vectors["dense"][:20], axis=1) > 0.999).all()


def test_the_samples_scorer_has_its_own_scores_and_no_others(sample):
    searcher = ck.Searcher(sample.index, sample.scorer)
    row = 5  # not the first: the scorer goes by texts
    [hits] = searcher.search(sample.queries.texts[row], k=3, budget=20)
    for hit in hits:
        column = sample.index.items.position(hit.id)
        assert hit.score == pytest.approx(sample.scores[row, column])
    with pytest.raises(ck.ScorerError, match=r"no stored score for 'an \[other\] one'"):
        searcher.search("an [other] one", k=3, budget=20)


def test_searching_finds_more_than_reranking_on_the_sample(trial):
    assert trial.recall.sign == 1
    assert trial.recall.low > 0.15
    assert trial.gain.difference > 0


def test_a_trial_counts_what_it_says(trial, sample):
    """Held against exact order, computed here from the scores alone."""
    column = {i: c for c, i in enumerate(sample.index.items.ids)}
    for q, query in enumerate(sample.queries.ids):
        true, items = np.argsort(-sample.scores[q], kind="stable"), trial.items[q]
        assert trial.neighbours["crossknn"][q] == np.isin(true[:10], items[:50]).mean()
        [right] = (column[item] for item in sample.qrels[query])
        assert trial.returned["crossknn"][q] == (right in items[:RETURNED])
        assert trial.returned["exact"][q] == (right in true[:RETURNED])
    rerank, search = trial.returned["rerank"], trial.returned["crossknn"]
    rows = trial.missed.rows
    assert len(rows) == ((search == 1) & (rerank == 0)).sum() > 0
    opposite = ((rerank == 1) & (search == 0)).sum()
    assert f"for {len(rows)} of 60 queries ({opposite} the other way round)" in trial.missed.caption
    for retriever_place, search_place, shown, item in rows:  # beyond what reranking sees
        [query] = (t for t in sample.queries.texts if t.startswith(shown.removesuffix("…")))
        q = sample.queries.texts.index(query)
        vectors = sample.index.vectors["dense"]
        own = ck.DualEncoder().encode_queries([query])[0] @ vectors.T
        [right] = (column[item] for item in sample.qrels[sample.queries.ids[q]])
        assert retriever_place == (own > own[right]).sum() + 1 > 50
        assert trial.items[q, search_place - 1] == right
        assert item.split(":")[0] == sample.index.items.texts[right].splitlines()[0]


def test_a_single_query_and_a_single_call_without_judgements(sample):
    trial = Trial.run(sample.index, sample.queries.take([0]), sample.scores[:1], budget=1)
    assert trial.sentence.startswith("With 1 call for one query, searching")
    table = trial.table()
    assert table.head == ["", "exact top 10 found"]
    assert [row[0] for row in table.rows] == [
        "rerank the first 1",
        "crossknn, 1 call",
        "all 11,587 scored",
    ]
    assert (trial.gain, trial.diagnosis, trial.missed) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "first", "rest"),
    [
        ("Return x\nover two lines.\n\nMore.", "Return x over two lines.", "More."),
        ("No full stop\n\nMore text", "No full stop", "More text"),
        ("Use e.g. Latin, or I. Newton. Rest.", "Use e.g. Latin, or I. Newton.", "Rest."),
        ("Is it so?  Yes.\n \nMore.", "Is it so?", "Yes.\n\nMore."),
    ],
)
def test_first_sentence(text, first, rest):
    assert first_sentence(text) == (first, rest)


def test_questions_are_taken_out_of_the_items_that_answer_them():
    rest = "It has a long explanation of more than eight words in all."
    records = [{"id": f"t{n}", "title": f"Thing number {n}", "text": rest} for n in range(4)]
    records += [{"id": f"s{n}", "text": f"Turn {n} into words. {rest}"} for n in range(4)]
    records += [{"id": "short", "text": "Too short to be asked for."}]
    made = questions_from(ck.read_items(records), 20)
    assert sorted(made.queries.ids) == sorted(f"q:{r['id']}" for r in records[:8])
    for query, text in zip(made.queries.ids, made.queries.texts, strict=True):
        [item] = made.qrels[query]
        assert made.items.texts[made.items.position(item)] == rest
        assert text in (f"Thing number {item[1:]}", f"Turn {item[1:]} into words.")
    assert made.items.texts[-1] == "Too short to be asked for."
    assert len(questions_from(ck.read_items(records), 6).queries) == 6
    with pytest.raises(ck.InputError, match="queries can be made of 4 of the items only"):
        questions_from(ck.read_items(records[:4]), 20)


def test_an_answer_holds_what_was_scored():
    """With five calls an answer has five items: what would fill it up to twenty has no score."""
    texts = [f"tree {n}" if n < 10 else f"river {n}" for n in range(30)]
    index = ck.ItemIndex.build(texts, lsa=4)
    wrong = np.arange(30.0)[None]  # likes the rivers
    qrels = {"q": {index.items.ids[n]: 1 for n in range(10)}}
    trial = Trial.run(index, ck.QuerySet(("q",), ("tree",)), wrong, qrels, budget=5)
    assert "right items among the 5 returned" in trial.sentence
    assert max(share[0] for share in trial.returned.values()) <= 0.5


def test_the_query_itself_takes_no_place():
    """A query that is an item: twenty others are returned beside it."""
    texts = [f"tree number {n}" for n in range(40)]
    index = ck.ItemIndex.build([{"id": f"d{n}", "text": t} for n, t in enumerate(texts)], lsa=4)
    scores = -np.arange(40.0)[None]
    trial = Trial.run(index, ck.QuerySet(("d0",), (texts[0],)), scores, {"d0": {"d20": 1}})
    assert 0 not in trial.items[0]
    assert trial.returned["exact"][0] == 1


SPEEDS, ENCODING = (3.0, 80.0, 700.0, 20_000.0), (0.0, 0.001, 0.05)
CASES = [*product(SPEEDS, ENCODING, (100, 800, 10_000), (3, 8, 20, 300, 6_000))]


def planned(minutes, speed, encoding, n, judged):
    speeds = {"pairs_per_second": speed, "seconds_per_text": encoding}
    return Plan.within(minutes, **speeds, items=n, judged=judged, n_queries=20, budget=50)


@pytest.mark.parametrize("minutes", [0.1, 1, 4, 10, 120])
def test_no_plan_is_longer_than_its_minutes(minutes):
    """In a report, 4 minutes were planned as 13.2; what cannot fit is refused with what can."""
    for case in CASES:
        try:
            plan = planned(minutes, *case)
        except InputError as error:
            needed = float(re.search(r"give --minutes ([\d.]+)", str(error))[1])
            assert needed > minutes
            assert planned(needed, *case).minutes <= needed + 1e-9
            continue
        speed, encoding, n, judged = case
        pairs = plan.queries * plan.items + plan.verdict_pairs
        assert plan.minutes == pytest.approx((plan.items * encoding + pairs / speed) / 60)
        assert plan.minutes <= minutes + 1e-9, case
        assert min(8, judged) <= plan.queries <= plan.judged <= judged
        assert 100 <= plan.items <= n


def test_time_enough_takes_everything():
    plan = planned(600, 700.0, 0.001, 10_000, 300)
    assert (plan.items, plan.queries, plan.judged) == (10_000, 20, 300)


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    words = [f"{a}{b}" for a in ("bra", "sto", "kli", "ver") for b in ("ta", "lo", "ke", "di")]
    rows = (" ".join(draw.choices(words, k=14)) for _ in range(3_000))
    jsonl(tmp_path / "docs.jsonl", ({"title": text[:20], "text": text} for text in rows))


@pytest.mark.slow
def test_a_trial_keeps_to_its_minutes(texts, capsys):
    began = time.monotonic()
    assert run(["try", "docs.jsonl", "--minutes", "0.4"]) == 0
    took = time.monotonic() - began
    plan = re.search(r"fit into 0.4 minutes.* ([\d.]+) minutes, or less", capsys.readouterr().err)
    assert float(plan[1]) <= 0.4
    assert took < 70  # the page, the searches and loading come on top, and a machine may be busy


def test_too_few_minutes_are_refused_with_what_is_needed(texts, capsys):
    assert run(["try", "docs.jsonl", "--minutes", "0.1", "--budget", "1000"]) == 2
    needed = r"0\.1 minutes are too few: .* 8 queries with 2000 items .* give --minutes [\d.]+$"
    assert re.search(needed, capsys.readouterr().err.strip())
