"""fixedITEM: a baseline of ANNCUR (EMNLP 2022, section 3.2).

"Embed all items and test-query in R^{k_i} using CE scores with a fixed set of k_i items chosen
uniformly at random, and retrieve top-k_r items for the test query based on dot-product of these
k_i-dim embeddings."
"""

from collections.abc import Sequence

import numpy as np

from .problem import Batch, Problem, Ranked, best_first, given, observed


def rank(problem: Problem, batches: Sequence[Batch]) -> Ranked:
    """By `problem.first` (the fixed items on top), then by the dot product.

    Item i has the vector item_scores[:, i]. The query's vector holds its exact scores with the
    fixed items (`problem.item_queries`), and 0 where such an item has not been scored yet.
    """
    if not batches:
        return best_first(problem.retriever, batches)
    item_scores = given(problem.item_scores, "item_scores")
    fixed = given(problem.item_queries, "item_queries")
    items, scores = observed(batches)
    row = np.zeros(len(problem.retriever))
    row[items] = scores
    return best_first(row[fixed] @ item_scores, batches)
