"""Does searching deeper pay? Compare methods by judged queries, at the same number of calls.

    python examples/compare_with_judgements.py

The sample of the package has 60 queries, their right answers and all scores, so no model runs.
With your own data: an index, `ck.read_queries(path)`, `ck.read_qrels(path)` and your scorer.
"""

import crossknn as ck

sample = ck.sample()
methods = ck.parse_methods("retrieve(retriever=dense), rerank(retriever=dense), auto")
_, *outcomes = ck.compare(
    sample.index,
    sample.queries,
    sample.scores,
    methods,
    budgets=[50],
    ks=[10],
    qrels=sample.qrels,
    measures=["R@20"],
)
for one in outcomes:
    name = f"{one.method:28} {one.budget:4} calls"
    print(
        f"{name}: recall@10 {one.recall[10].mean():.3f}, right in 20 {one.task['R@20'].mean():.3f}"
    )
