"""Search only items whose fields meet conditions.

python examples/filter.py
"""

from pathlib import Path

import crossknn as ck

index = ck.ItemIndex.build(Path(__file__).parent / "texts.jsonl", encoder="bundled")
searcher = ck.Searcher(index, ck.CrossEncoder())

recent = {"year": {"gte": 2019}, "topic": {"not": "security"}}
print(index.allowed(recent).sum(), "of", len(index.items.ids), "items are allowed")

for hit in searcher.search("pack a folder", k=3, budget=10, filter=recent)[0]:
    print(f"{hit.score:6.2f}  {hit.extra['year']}  {hit.extra['topic']:10}  {hit.text}")
