"""Score with a reranker behind an HTTP endpoint, in the shape of Cohere, Jina, infinity or TEI.

python examples/endpoint.py http://localhost:8080/rerank
"""

import sys
from pathlib import Path

import crossknn as ck

url = sys.argv[1]

index = ck.ItemIndex.build(Path(__file__).parent / "texts.jsonl", encoder="bundled")
scorer = ck.HttpScorer(url, model="bge-reranker-base")  # the name under which scores are kept
searcher = ck.Searcher(index, ck.StoredScorer(scorer, index.scores))

# Each round is a request: 5 rounds of 4 pairs. A deadline ends with the best found so far.
results = searcher.search(
    "wait until another thread is done",
    k=3,
    budget=ck.Budget(per_query=20, deadline=10),
    method="kriging(rounds=5)",
)
for hit in results[0]:
    print(f"{hit.score:6.2f}  {hit.id:10}  {hit.text}")
