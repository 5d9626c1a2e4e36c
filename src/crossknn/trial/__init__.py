"""Trials: reranking and searching compared at equal numbers of scored pairs, for `demo` and
`try`."""
