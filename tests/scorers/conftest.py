"""A server that tests of endpoints share."""

import json
from contextlib import ExitStack, closing

import pytest
from faulty_server import Faulty, answer


@pytest.fixture
def serve():
    """Start a server that answers what `respond(body)` says: an answer, or (status, answer)."""
    with ExitStack() as servers:

        def start(respond):
            def fault(body):
                said = respond(body)
                status, said = said if isinstance(said, tuple) else (200, said)
                data = said if isinstance(said, bytes) else json.dumps(said).encode()
                return [answer(data, f"{status} Said")]

            server = servers.enter_context(closing(Faulty(fault)))
            server.base = server.url.removesuffix("/rerank")
            return server

        yield start
