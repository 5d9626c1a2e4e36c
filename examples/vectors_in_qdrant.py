"""Search a collection of Qdrant: vectors, texts and fields stay there.

pip install 'crossknn[qdrant]'
python examples/vectors_in_qdrant.py
"""

import json
from pathlib import Path

from qdrant_client import QdrantClient, models

import crossknn as ck

lines = (Path(__file__).parent / "texts.jsonl").read_text(encoding="utf-8").splitlines()
records = [json.loads(line) for line in lines]
encoder = ck.DualEncoder("bundled")

client = QdrantClient(":memory:")  # a server: QdrantClient("http://localhost:6333")
size = models.VectorParams(size=encoder.dimensions, distance=models.Distance.DOT)
client.create_collection("texts", vectors_config=size)
vectors = encoder.encode_items([record["text"] for record in records])
client.upload_collection("texts", vectors=vectors, payload=records, ids=range(len(records)))

index = ck.ItemIndex.over(ck.QdrantStore(client, "texts"), "text", encoder=encoder)
searcher = ck.Searcher(index, ck.CrossEncoder())
results = searcher.search("notice a changed file", k=3, budget=15, filter={"year": {"gte": 2018}})
for hit in results[0]:
    print(f"{hit.score:6.2f}  {hit.extra['topic']:10}  {hit.text}")
