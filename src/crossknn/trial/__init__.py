"""Trials compare reranking and searching at equal numbers of scored pairs, for the commands `demo`
and `try`."""
