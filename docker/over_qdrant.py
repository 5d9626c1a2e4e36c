"""The service over a collection of Qdrant: python over_qdrant.py URL COLLECTION FIELD_OF_TEXTS"""

import os
import sys
from typing import Any

import crossknn as ck
from crossknn.service.app import Patient, create_app
from crossknn.service.engine import Engine


def app_over(client: Any, collection: str, field: str) -> Any:
    """The application over a collection whose vectors are the bundled encoder's."""
    store = ck.QdrantStore(client, collection)
    index = ck.ItemIndex.over(store, field, encoder="bundled")
    keys = os.environ.get("CROSSKNN_SERVE_KEYS", "").split()
    return create_app(Engine({collection: index}, ck.CrossEncoder()), keys=keys)


if __name__ == "__main__":
    import uvicorn
    from qdrant_client import QdrantClient

    url, *named = sys.argv[1:]
    uvicorn.run(app_over(QdrantClient(url), *named), host="0.0.0.0", port=8000, http=Patient)
