"""The service over a collection of Qdrant: python over_qdrant.py URL COLLECTION FIELD_OF_TEXTS"""

import sys
from typing import Any

import crossknn as ck
from crossknn.cli.serve import keys_of
from crossknn.service.app import serve
from crossknn.service.connections import listening
from crossknn.service.engine import Engine


def engine_over(client: Any, collection: str, field: str) -> Engine:
    """The engine over a collection whose vectors are the bundled encoder's."""
    store = ck.QdrantStore(client, collection)
    index = ck.ItemIndex.over(store, field, encoder="bundled")
    return Engine({collection: index}, ck.CrossEncoder())


if __name__ == "__main__":
    from qdrant_client import QdrantClient

    url, *named = sys.argv[1:]
    with listening("0.0.0.0", 8000) as sockets:
        serve(engine_over(QdrantClient(url), *named), sockets, keys=keys_of(None))
