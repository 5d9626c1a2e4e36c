"""Search texts of your own with the models that come with the package.

python examples/own_texts.py
"""

from pathlib import Path

import crossknn as ck

TEXTS = Path(__file__).parent / "texts.jsonl"  # {"id": ..., "text": ..., other fields} in each line

index = ck.ItemIndex.build(TEXTS, encoder="bundled")
searcher = ck.Searcher(index, ck.CrossEncoder())

results = searcher.search("how do I unpack an archive", k=3, budget=20)
for hit in results[0]:
    print(f"{hit.score:6.2f}  {hit.id:10}  {hit.text}")
print(results.n_calls, "pairs scored, of", len(index.items.ids))
