"""Vectors in PostgreSQL: a table with a column of pgvector's type `vector`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from crossknn.errors import InputError, nearest, needs_extra
from crossknn.index.database import DatabaseStore, Found, Id, plain_id
from crossknn.index.filters import Among, Between, Condition, Missing, combined, evaluate, fields_of
from crossknn.types import FloatArray

_WIDEST = 1000  # items that pgvector's HNSW index finds at most
_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


class PgVectorStore(DatabaseStore):
    """Rows of a PostgreSQL table that have a vector, in the order of their ids; a `VectorStore`.

    >>> store = PgVectorStore("postgresql://localhost/shop", "docs")  # doctest: +SKIP

    Args:
        server: Where PostgreSQL is, as libpq has it; rows are only read.
        table: Its name, or `schema.table`.
        vector: The column of vectors. Products are looked up in its index, if that is of
            `vector_ip_ops`.
        id: The column of ids, whole numbers, texts or UUIDs that all differ.
        exact: Compare all rows, not those that an index comes across.

    Raises:
        InputError: There is no such table or column, or no vector.
        StoreError: PostgreSQL cannot be reached.
    """

    def __init__(
        self,
        server: str,
        table: str,
        *,
        vector: str = "embedding",
        id: str = "id",
        exact: bool = False,
    ) -> None:
        with needs_extra("vectors in PostgreSQL", "pgvector"):
            import psycopg
            from psycopg import sql

        self.name = f"the PostgreSQL table {table!r}"
        self._server, self._exact, self._psycopg, self._sql = server, exact, psycopg, sql
        self._connection: Any = None
        self.errors = psycopg.Error, OSError
        self._lock = threading.Lock()
        with self.answering():
            columns = dict[str, Any](
                self._rows(
                    "select attname, typname from pg_attribute join pg_type t on atttypid = t.oid "
                    "where attrelid = to_regclass({}) and attnum > 0 and not attisdropped",
                    sql.Literal(table),
                )
            )
            for column in (id, vector):
                if column not in columns:
                    hint = nearest(column, columns) if columns else "there is no such table"
                    raise InputError(f"{self.name} has no column {column!r} ({hint})")
            if columns[vector] != "vector":
                raise InputError(
                    f"the column {vector!r} of {self.name} is of type {columns[vector]}: give one "
                    "of pgvector's type vector"
                )
            self._fields = [c for c in columns if c not in (id, vector)]
            self._words = {
                "table": sql.Identifier(*table.split(".")),
                "id": sql.Identifier(id),
                "vector": sql.Identifier(vector),
                "ids": sql.Identifier(columns[id]),
                "fields": sql.SQL(", ").join(map(sql.Identifier, self._fields)),
            }
            rows = "from {table} where {vector} is not null"
            ids = self._rows(f"select {{id}} {rows} order by {{id}}")
            dimensions = self._rows(f"select vector_dims({{vector}}) {rows} limit 1")
        super().__init__(
            self.name, [plain_id(key) for (key,) in ids], dimensions[0][0] if dimensions else 0
        )

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows that a query returns; its names are those of the table."""
        if self._connection is None or self._connection.closed:
            self._connection = self._psycopg.connect(self._server, autocommit=True)
        said = self._sql.SQL(query).format(*values, **getattr(self, "_words", {}))
        return self._connection.execute(said).fetchall()

    def _search(self, vectors: FloatArray, count: int, among: Any) -> Sequence[Found]:
        exact, some, literal = self._exact or count > _WIDEST, "{table}", self._sql.Literal
        if among is not None:
            some = "(select * from {table} where {id} = any({}::{ids}[]) offset 0) as chosen"
        limits = "select set_config('hnsw.ef_search', {}, false)"
        limits += ", set_config('enable_indexscan', {}, false)"
        query = f"select {{id}}, -({{vector}} <#> {{}}::vector) from {some}"
        query += " where {vector} is not null order by {vector} <#> {}::vector limit {}"
        only, answers = [] if among is None else [literal([*among])], list[Found]()
        with self._lock:  # threads share the connection, and what is set in it
            self._rows(limits, literal(str(min(max(count, 40), _WIDEST))), literal(str(not exact)))
            for vector in vectors.tolist():
                asked = literal(str(vector))
                rows = self._rows(query, asked, *only, asked, literal(count))
                answers.append(([plain_id(key) for key, _ in rows], [p for _, p in rows]))
        return answers

    def _read(self, ids: Sequence[Id], *, vectors: bool) -> Mapping[Id, Any]:
        what = "{vector}::real[]" if vectors else "to_jsonb(one)"
        some = "(select {id} as chosen_id, * from {table} where {id} = any({}::{ids}[])) as chosen"
        query = f"select chosen_id, {what} from {some}"
        if not vectors:
            query += ", lateral (select {fields}) as one"
        return {plain_id(key): found for key, found in self._rows(query, self._sql.Literal([*ids]))}

    def _matching(self, condition: Condition) -> Iterable[Id]:
        for field in fields_of(condition):
            if field.split(".")[0] not in self._fields:
                raise InputError(
                    f"the filter names {field!r}, which is no column of {self.name} "
                    f"({nearest(field, self._fields)})"
                )
        sql = self._sql.SQL
        group = combined(
            lambda parts: sql("({})").format(sql(" and ").join(parts)),
            lambda parts: sql("({})").format(sql(" or ").join(parts)),
            lambda part: sql("not ({})").format(part),
        )
        met = evaluate(condition, self._leaf, group)
        query = "select {id} from {table} where {vector} is not null and {}"
        return (plain_id(key) for (key,) in self._rows(query, met))

    def _leaf(self, leaf: Among | Between | Missing) -> Any:
        """A condition on one column, in the language of JSON paths, which has our comparisons."""
        sql, literal = self._sql.SQL, self._sql.Literal
        column, *path = leaf.field.split(".")
        held = sql("to_jsonb({}) #> {}").format(self._sql.Identifier(column), literal(path))
        if isinstance(leaf, Missing):
            return sql("coalesce({} in ('null', '[]'), true)").format(held)
        if isinstance(leaf, Between):
            tests = [f"@ {_SIGNS[bound]} ${bound}[*]" for bound in leaf.bounds]
            given: dict[str, Any] = {bound: [value] for bound, value in leaf.bounds.items()}
            test = " && ".join(tests)
        else:
            given, test = {"among": [*leaf.values]}, "@ == $among[*]"
        parts = held, literal(f"$[*] ? ({test})"), literal(json.dumps(given))
        return sql("coalesce(jsonb_path_exists({}, {}::jsonpath, {}), false)").format(*parts)
