"""A server of the Model Context Protocol: the tools `search` and `fetch` over an index.

Arguments and answers have the format that ChatGPT's and Claude's connectors expect
(platform.openai.com/docs/mcp); answers stay below the length at which clients cut them.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from crossknn.adapters import text_of
from crossknn.errors import CrossknnError, needs_extra
from crossknn.search.fresh import FreshSearcher
from crossknn.search.results import Hit, Results
from crossknn.search.searcher import Budget, Searcher
from crossknn.types import json_value

with needs_extra("crossknn mcp", "mcp"):
    from anyio import from_thread, to_thread
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations
    from pydantic import Field

MAX_BYTES = 40_000
"""Maximum bytes of UTF-8 in an answer; clients cut at 25,000 tokens, and a token of Chinese has
about two bytes."""
MAX_HITS = 50
MAX_QUERY = 32_768  # characters
_SNIPPET = 300  # characters of a hit's text, and of any title
_WEB = re.compile(r"https?://[^\s/?#\\][^\s\x00-\x1f\x7f]{,2000}", re.IGNORECASE)
_INSTRUCTIONS = (
    "search finds texts of the index {name!r} that a cross-encoder judges relevant to a question; "
    "its snippets are beginnings, and fetch reads a whole text by its id."
)
_READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)


def create_server(searcher: Searcher, name: str, budget: Budget) -> MCPServer:
    """Make a server over the index of a searcher, which the threads of all calls share. `name` is
    that of the index, for the language model and in URLs; `budget` that of each search."""
    server = MCPServer(
        "crossknn", instructions=_INSTRUCTIONS.format(name=name), log_level="WARNING"
    )
    tools = _Tools(searcher, name, budget)
    for tool in (tools.search, tools.fetch):
        server.add_tool(tool, annotations=_READS)
    return server


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Tell the model what is wrong: the SDK shows only messages of its own errors."""
    try:
        yield
    except CrossknnError as error:
        raise ToolError(str(error)) from error


class _Tools:
    """The tools of an index; their signatures and docstrings describe them to models, which send
    null for arguments that they do not set."""

    def __init__(self, searcher: Searcher, name: str, budget: Budget) -> None:
        self._searcher, self._name, self._budget = FreshSearcher(searcher), name, budget

    async def search(
        self,
        query: Annotated[
            str, Field(description="A question, or words.", min_length=1, max_length=MAX_QUERY)
        ],
        context: Context[Any, Any],
        k: Annotated[
            int | None, Field(description="Texts to return; by default 10.", ge=1, le=MAX_HITS)
        ] = None,
        filter: Annotated[
            dict[str, Any] | None, Field(description='Conditions on fields: {"lang": "en"}.')
        ] = None,
    ) -> dict[str, Any]:
        """Find the most relevant texts: ids, titles, snippets and scores (logits), best first."""
        cancel, searcher = threading.Event(), await to_thread.run_sync(self._searcher.now)

        def report(done: int, total: int) -> None:
            from_thread.run(context.report_progress, done, total, f"{done} texts scored")

        options: dict[str, Any] = {"filter": filter or None, "cancel": cancel, "progress": report}
        work = partial(searcher.search, query, k, self._budget, **options)
        try:
            with _readable_errors():
                results = await to_thread.run_sync(work, abandon_on_cancel=True)
        finally:
            cancel.set()
        return self._answer(results, filtered=bool(filter))

    def _answer(self, results: Results, *, filtered: bool) -> dict[str, Any]:
        hits, note = [self._entry(hit) for hit in results[0]], self._searcher.problem
        if results.stopped_by not in ("budget", "target"):
            note = f"the best hits so far: stopped by {results.error or results.stopped_by}"
        elif filtered and not hits:
            note = "the filter allows no item"
        answer: dict[str, Any] = {"results": hits} | ({"note": note} if note else {})
        while _size(answer) > MAX_BYTES and hits:
            hits.pop()
            cut = f"the first {len(hits)} of {len(results[0])}: an answer holds no more"
            answer["note"] = f"{note}; {cut}" if note else cut
        return answer

    def fetch(
        self,
        id: Annotated[str, Field(description="As search returns it.")],
        offset: Annotated[
            int | None, Field(description="Characters of the text to leave out.", ge=0)
        ] = None,
    ) -> dict[str, Any]:
        """Read a text and its fields; what is long comes in several answers."""
        start = offset or 0
        with _readable_errors():
            item = self._searcher.now().index.item(id)
        if start and start >= len(item.text):
            raise ToolError(f"offset is {start}, but the text has {len(item.text)} characters")
        url = self._url(item.id, item.extra)
        fields = {name: value for name, value in item.extra.items() if name != "url"}
        answer: dict[str, Any] = {
            "id": item.id,
            "title": (item.title or item.id)[:_SNIPPET],
            "text": "",
            "url": url,
            "metadata": json_value(fields),
        }
        if _size(answer) > MAX_BYTES // 2:
            answer["metadata"] = {"note": "the fields are too long for an answer"}
        room = MAX_BYTES - _size(answer) - 200  # for the note
        text = item.text[start : start + room]
        while (size := _size(text)) > room:  # letters that JSON escapes, or of several bytes
            text = text[: len(text) * room // size]
        answer["text"] = text
        if (end := start + len(text)) < len(item.text):
            answer["note"] = (
                f"characters {start} to {end} of {len(item.text)}: "
                f"fetch again with offset {end} to read on"
            )
        return answer

    def _entry(self, hit: Hit) -> dict[str, Any]:
        words = " ".join(text_of(hit)[: 4 * _SNIPPET].split())
        return {
            "id": hit.id,
            "title": (hit.title or hit.id)[:_SNIPPET],
            "url": self._url(hit.id, hit.extra),
            "snippet": words if len(words) <= _SNIPPET else f"{words[:_SNIPPET]}…",
            "score": round(hit.final_score, 4),
        } | ({"predicted": True} if hit.predicted else {})

    def _url(self, item_id: str, extra: Any) -> str:
        """Return the item's web address, or a crossknn URL: other URLs may run a program."""
        url = extra.get("url")
        if isinstance(url, str) and _WEB.fullmatch(url):
            return url
        return f"crossknn://{quote(self._name)}/{quote(item_id, '', errors='replace')}"


def _size(answer: Any) -> int:
    """Return the bytes of an answer in JSON, as the SDK writes it."""
    return len(json.dumps(answer, ensure_ascii=False, indent=2).encode(errors="replace"))
