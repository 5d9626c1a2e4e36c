"""Keep every score, and let later searches learn from it.

python examples/learn_from_use.py
"""

import tempfile
from pathlib import Path

import crossknn as ck

folder = Path(tempfile.mkdtemp()) / "texts.index"
ck.ItemIndex.build(Path(__file__).parent / "texts.jsonl", encoder="bundled").save(folder)

index = ck.ItemIndex.load(folder)  # scores of an index in a folder are kept there
scorer = ck.StoredScorer(ck.CrossEncoder(), index.scores)
searcher, learner = ck.Searcher(index, scorer), ck.Learner(index, scorer)

verbs, nouns = ["open", "read", "count", "copy", "sort"], ["files", "dates", "threads"]
for verb in verbs:
    for noun in nouns:
        for manner in ("quickly", "safely"):
            searcher.search(f"how do I {verb} {noun} {manner}", k=3, budget=20)

learner.notice()  # after any search: fits in the background when enough is new; makes no calls
learner.wait()
print(len(index.scores), "scores are kept")
print("what the index has learned:", sorted(index.artifacts))
