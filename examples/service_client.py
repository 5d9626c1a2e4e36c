"""Ask a running service, with the standard library only.

crossknn index build examples/texts.jsonl texts.index
crossknn serve texts.index
python examples/service_client.py http://localhost:8000
"""

import json
import sys
import urllib.request

address = sys.argv[1]


def post(route: str, body: dict) -> dict:
    """The answer to a JSON body."""
    request = urllib.request.Request(
        address + route, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


answer = post("/search", {"query": "count words", "k": 3, "budget": 15, "deadline_ms": 5000})
for hit in answer["results"][0]["hits"]:
    print(f"{hit['score']:6.2f}  {hit['id']:10}  {hit['text']}")

documents = ["Count things with a Counter.", "Lock a thread.", "Open a socket."]
answer = post("/v2/rerank", {"query": "count words", "documents": documents, "top_n": 2})
print([result["index"] for result in answer["results"]])
