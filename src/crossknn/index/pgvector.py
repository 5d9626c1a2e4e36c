"""Vectors in PostgreSQL: a table with a column of pgvector's type `vector`."""

from __future__ import annotations

import json
import threading
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from crossknn.errors import InputError, nearest, needs_extra
from crossknn.index.database import DatabaseStore, Found, Id
from crossknn.index.filters import Between, Condition, Leaf, Missing, evaluate
from crossknn.types import FloatArray

_WIDEST = 1000  # maximum number of items that pgvector's HNSW index returns
_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_TEXTS = "text", "varchar", "bpchar"
_HELD = "from {table} where {vector} is not null"
_COLUMNS = """
select attname, typname, t.nspname, format_type(atttypid, -1), atttypmod, n.nspname, relname
from pg_attribute join pg_class c on c.oid = attrelid join pg_namespace n on n.oid = relnamespace
join (select y.oid, typname, nspname from pg_type y join pg_namespace s on s.oid = typnamespace) t
on t.oid = atttypid
where attrelid = to_regclass({}) and attnum > 0 and not attisdropped order by attnum
"""


_Column = namedtuple("_Column", "type type_schema full_type mod schema table")
"""The name and schema of a column's type, the type with its dimensions, and the table."""


class PgVectorStore(DatabaseStore):
    """The rows of a PostgreSQL table that have a vector, ordered by id; a `VectorStore`.

    >>> store = PgVectorStore("postgresql://localhost/shop", "docs")  # doctest: +SKIP

    Args:
        server: A connection string of libpq. The table is only read.
        table: The table's name, or `schema.table`.
        vector: The column of vectors. Searches use an index on this column if it has the operator
            class `vector_ip_ops`.
        id: The column of ids: distinct integers, texts or UUIDs.
        exact: Compare the query with all rows instead of using an index.
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
            columns = self._columns(str(table))
            for column in (id, vector):
                if column not in columns:
                    hint = nearest(column, columns) if columns else "there is no such table"
                    raise InputError(f"{self.name} has no column {column!r} ({hint})")
            about = columns[vector]
            if about.type != "vector":
                raise InputError(
                    f"the column {vector!r} of {self.name} is of type {about.type}: give a "
                    "column of pgvector's type vector"
                )
            self._fields = {name: c.type for name, c in columns.items() if name not in (id, vector)}
            whole = columns[id].type in ("int2", "int4", "int8")
            self._words = {
                "table": sql.Identifier(about.schema, about.table),
                "id": sql.Identifier(id),
                "key": sql.SQL("{}" if whole else "{}::text").format(sql.Identifier(id)),
                "ids": sql.SQL(columns[id].full_type),
                "vector": sql.Identifier(vector),
                "vectors": sql.SQL(about.full_type),
                "near": sql.SQL("operator({}.<#>)").format(sql.Identifier(about.type_schema)),
                "dimensions": sql.Identifier(about.type_schema, "vector_dims"),
                "fields": sql.SQL(", ").join(map(sql.Identifier, self._fields)),
            }
            ids = [key for (key,) in self._rows(f"select {{key}} {_HELD} order by {{id}}")]
            if None in ids:
                raise InputError(f"{self.name} has a row whose id column {id!r} is null")
            some = "" if about.mod > 0 else "distinct "  # declared dimensions are the same
            rows = self._rows(f"select {some}{{dimensions}}({{vector}}) {_HELD} limit 2")
            if len({*rows}) > 1:
                raise InputError(
                    f"the vectors of {self.name} have {rows[0][0]} dimensions, and others "
                    f"{rows[1][0]}: all must have the same number"
                )
            super().__init__(self.name, ids, rows[0][0] if rows else 0)

    def _columns(self, table: str) -> dict[str, _Column]:
        """The name is read literally, `Docs` or `sales.Docs`, or as SQL does: `sales."Docs"`."""
        for parts in (table.split(".", 1), [table], None):
            with suppress(self._psycopg.ProgrammingError, self._psycopg.DataError, UnicodeError):
                name = self._sql.Identifier(*parts).as_string() if parts else table
                if rows := self._rows(_COLUMNS, self._sql.Literal(name)):
                    return {name: _Column(*about) for name, *about in rows}
        return {}

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            try:
                self._connection = self._psycopg.connect(self._server, autocommit=True)
            except (self._psycopg.ProgrammingError, AttributeError) as error:  # quotes a password
                raise InputError(
                    "the server is no connection string of PostgreSQL: give one such as "
                    "postgresql://user@host/database"
                ) from error
        statement = self._sql.SQL(query).format(*values, **getattr(self, "_words", {}))
        return self._connection.execute(statement).fetchall()

    def _search(self, vectors: FloatArray, count: int, among: Any) -> Sequence[Found]:
        exact, some, literal = self._exact or count > _WIDEST, "{table}", self._sql.Literal
        if among is not None:
            some = "(select * from {table} where {id} = any({}::{ids}[]) offset 0) as chosen"
        limits = "select set_config('hnsw.ef_search', {}, false)"
        limits += ", set_config('enable_indexscan', {}, false)"
        query = f"select {{key}}, -({{vector}} {{near}} {{}}::{{vectors}}) from {some}"
        query += " where {vector} is not null order by {vector} {near} {}::{vectors} limit {}"
        only, answers = [] if among is None else [literal([*among])], list[Found]()
        with self._lock:  # threads share the connection and its settings
            self._rows(limits, literal(str(min(max(count, 40), _WIDEST))), literal(str(not exact)))
            for vector in vectors.tolist():
                asked = literal(str(vector))
                rows = self._rows(query, asked, *only, asked, literal(count))
                answers.append(([key for key, _ in rows], [p for _, p in rows]))
        return answers

    def _read(self, ids: Sequence[Id], *, vectors: bool) -> Mapping[Id, Any]:
        some, given = "from {table} where {id} = any({}::{ids}[])", self._sql.Literal([*ids])
        if vectors:
            return dict(self._rows(f"select {{key}}, {{vector}}::real[] {some}", given))
        one = f"(select * {some}) as entry, lateral (select {{fields}}) as one"
        return dict(self._rows(f"select {{key}}, to_jsonb(one.*) from {one}", given))

    def _fields_like(self, field: str) -> Iterable[str] | None:
        return None if {field, field.split(".")[0]} & {*self._fields} else self._fields

    def _matching(self, condition: Condition) -> Iterable[Id]:
        sql = self._sql.SQL
        met = evaluate(
            condition,
            self._leaf,
            all=lambda parts: sql("({})").format(sql(" and ").join(parts)),
            any=lambda parts: sql("({})").format(sql(" or ").join(parts)),
            no=lambda part: sql("not ({})").format(part),
        )
        return (key for (key,) in self._rows(f"select {{key}} {_HELD} and {{}}", met))

    def _leaf(self, leaf: Leaf) -> Any:
        """Translate a condition to a JSON path, which compares as filters do."""
        sql, literal = self._sql.SQL, self._sql.Literal
        column, *path = [leaf.field] if leaf.field in self._fields else leaf.field.split(".")
        if isinstance(leaf, Missing) and self._fields[column] in _TEXTS:
            return sql("{} is null").format(self._sql.Identifier(column))  # long texts stay unread
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
