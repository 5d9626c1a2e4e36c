"""Reranking and searching at equal calls on texts of a user: what `demo` and `try` run and show."""
