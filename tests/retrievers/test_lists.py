"""The user's own candidate lists."""

import numpy as np
import pytest

from crossknn.data.queries import QuerySet
from crossknn.errors import InputError
from crossknn.retrievers.base import CandidateLists, RankFusion, Retriever
from crossknn.types import NO_ITEM, Queries

IDS = ["a", "b", "c", "d"]


def test_lists_with_and_without_scores(caplog):
    stage = CandidateLists({"one": ["c", "a"], "two": [("a", -2.0), ("d", 1.0), ("b", 1.0)]}, IDS)
    assert isinstance(stage, Retriever)
    queries = Queries(["one", "two", "three"])
    assert stage.top(queries, 10).items.tolist() == [[2, 0, NO_ITEM], [1, 3, 0], [NO_ITEM] * 3]
    assert np.array_equal(stage.scores(queries), [[0.5, 0, 1, 0], [-2, 1, -2, 1], [0, 0, 0, 0]])
    assert caplog.text.count("no candidate list for the query 'three'") == 1
    allowed = np.array([True, True, False, True])
    assert stage.top(queries, 2, allowed).items.tolist() == [[0, NO_ITEM], [1, 3], [NO_ITEM] * 2]
    turned = RankFusion([CandidateLists({"one": ids}, IDS) for ids in (["a", "b"], ["b", "a"])])
    assert turned.top(Queries(["one"]), 2).items.tolist() == [[0, 1]]  # ties by position


def test_from_a_trec_run(tmp_path):
    (tmp_path / "run").write_text("q1 Q0 b 1 3 tag\nq1 Q0 a 2 2 tag\nq9 Q0 a 1 1 tag\n")
    queries = QuerySet(("q1", "q2"), ("one", "two"))
    stage = CandidateLists.from_run(tmp_path / "run", queries, IDS)
    assert stage.top(Queries(queries.texts), 5).items.tolist() == [[1, 0], [NO_ITEM] * 2]
    with pytest.raises(InputError, match="ranks none of the queries"):
        CandidateLists.from_run(tmp_path / "run", QuerySet(("x",), ("one",)), IDS)


@pytest.mark.parametrize("entry", [["x"], ["a", "a"], [("a", float("nan"))]])
def test_wrong_lists_are_named(entry):
    with pytest.raises(InputError, match=r"the list of the query 'one' names '[xa]' .* must name"):
        CandidateLists({"one": entry}, IDS)
