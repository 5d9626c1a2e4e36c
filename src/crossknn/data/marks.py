"""Marked mentions: entity linking as text pairs.

A query is a sentence whose mention stands between `[Ms]` and `[Me]`; an item is its title, `[ENT]`,
and its description (ANNCUR, Yadav et al. 2022, A.2). Both are plain strings: a model whose
tokenizer knows the marks (`crossknn.models.tokens.add_marks`) reads them as one token each.
"""

from __future__ import annotations

from crossknn.errors import InputError

MENTION_START, MENTION_END, ENTITY = "[Ms]", "[Me]", "[ENT]"
MARKS = (MENTION_START, MENTION_END, ENTITY)

ITEM_TEMPLATE = f"{{title}} {ENTITY} {{text}}"
"""How an item's record becomes what `marked_item` makes of its title and text."""


def marked_query(left: str, mention: str, right: str) -> str:
    """`left [Ms] mention [Me] right`, without the empty parts."""
    if not mention.strip():
        raise InputError("the mention is empty")
    parts = (left, MENTION_START, mention, MENTION_END, right)
    return " ".join(part.strip() for part in parts if part.strip())


def marked_item(title: str, description: str) -> str:
    """`title [ENT] description`."""
    return f"{title.strip()} {ENTITY} {description.strip()}".strip()


def item_as_query(item: str) -> str:
    """An item in a query's place: `[Ms] title [Me] description`; an unmarked text stays (A.2)."""
    title, mark, description = item.partition(ENTITY)
    return marked_query("", title, description) if mark and title.strip() else item


def unmarked(text: str) -> str:
    """A marked query or item as plain text, for models that do not know the marks."""
    for mark in MARKS:
        text = text.replace(mark, " ")
    return " ".join(text.split())
