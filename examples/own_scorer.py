"""Use any function of (query, text) pairs as the scorer: a model, a remote call, a formula.

python examples/own_scorer.py
"""

from pathlib import Path

import crossknn as ck


def common_words(pairs: list[tuple[str, str]]) -> list[float]:
    """The scores (p,) of p pairs: here the share of the query's words that the text has."""
    return [
        len(set(query.lower().split()) & set(text.lower().split())) / len(query.split())
        for query, text in pairs
    ]


index = ck.ItemIndex.build(Path(__file__).parent / "texts.jsonl", encoder="bundled")
scorer = ck.CallableScorer(common_words, name="common words")  # a name lets its scores be kept
searcher = ck.Searcher(index, ck.StoredScorer(scorer, index.scores))

for attempt in ("first", "second"):
    results = searcher.search("read each row of a table", k=2, budget=15)
    print(f"{attempt} search: {results.n_calls} pairs scored, best:", results[0][0].text)
