"""Order documents that another system has retrieved, and score only some of them.

python examples/rerank_given_documents.py
"""

import json
from pathlib import Path

import crossknn as ck

lines = (Path(__file__).parent / "texts.jsonl").read_text(encoding="utf-8").splitlines()
documents = [json.loads(line)["text"] for line in lines]

answer = ck.rerank("send an email", documents, budget=10, top_k=3, return_documents=True)
for entry in answer:
    print(f"{entry['score']:6.2f}  {entry['text']}")
print(answer.results.n_calls, "of", len(documents), "documents scored")
