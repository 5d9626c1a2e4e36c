"""Whatever fields hold, answers are JSON: NaN and infinity are null, dates are ISO 8601."""

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from uuid import UUID

import numpy as np
import pytest

import crossknn as ck
from crossknn.data.items import Items


class Colour(Enum):
    RED = "red"


def shown(value):
    if isinstance(value, set):  # the order of a set's representation changes with each process
        return "set"
    return "too long" if isinstance(value, int) and value > 2**64 else repr(value)[:30]


VALUES = [
    *[(float("nan"), None), (float("-inf"), None), (np.float32("inf"), None)],
    *[(np.float32(0.5), 0.5), (np.longdouble(0.5), 0.5), (np.int64(2**40), 2**40)],
    *[(np.True_, True), (np.array([1.0, np.nan]), [1.0, None]), (np.array(3), 3)],
    *[(np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]), (np.datetime64("2020-05-01"), "2020-05-01")],
    (np.array(["2020-05-01", "NaT"], "M8[ns]"), ["2020-05-01T00:00:00.000000000", None]),
    *[(Decimal("12.50"), 12.5), (Decimal("9007199254740993"), 9007199254740993)],
    *[(Decimal("Infinity"), None), (Decimal("NaN"), None), (date(2020, 5, 1), "2020-05-01")],
    (datetime(2020, 5, 1, 10, tzinfo=UTC), "2020-05-01T10:00:00+00:00"),
    *[(time(10, 30), "10:30:00"), (timedelta(hours=1), "1:00:00")],
    *[(np.timedelta64(3, "s"), "3 seconds"), (np.timedelta64("NaT"), None)],
    *[(10**400, 10**400), (10**5000, None), (UUID(int=1), str(UUID(int=1)))],
    *[(PurePosixPath("a/b"), "a/b"), (Colour.RED, "red"), (b"caf\xc3\xa9", "café")],
    *[({"b", "a"}, ["a", "b"]), ((1, [2.5, float("nan")]), [1, [2.5, None]])],
    ({1: {"x": float("inf")}, None: 2}, {"1": {"x": None}, "None": 2}),
    ("half \ud800", "half \ufffd"),
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=shown)
def test_answers_are_json(tmp_path, value, expected):
    record = {"id": "d1", "text": "a tree", "field": value}
    bare = Items(ids=["d1"], texts=["a tree"], titles=[""], extra=[{"field": value}])
    for items in ([record], bare):
        index = ck.ItemIndex.build(items, lsa=0)
        results = ck.Searcher(index, lambda pairs: [1.0], "exact").search("tree")
        said = json.loads(json.dumps(results.to_dict(), allow_nan=False))
        assert said["results"][0]["hits"][0]["extra"] == {"field": expected}
    ck.ItemIndex.build([record], lsa=0).save(tmp_path / "i")
    assert dict(ck.ItemIndex.load(tmp_path / "i").items.extra[0]) == {"field": expected}


def test_filters_on_such_fields():
    index = ck.ItemIndex.build(
        [
            {"id": "a", "text": "x", "day": date(2020, 5, 1), "price": Decimal("1.5")},
            {"id": "b", "text": "y", "day": date(2021, 5, 1), "price": float("nan")},
        ],
        lsa=0,
    )
    assert index.allowed({"day": {"gte": "2021-01-01"}}).tolist() == [False, True]
    assert index.allowed({"price": {"lt": 2}}).tolist() == [True, False]
    assert index.allowed({"price": None}).tolist() == [False, True]


def test_a_field_that_never_ends():
    endless = {"id": "d1", "text": "a tree"}
    endless["again"] = endless
    with pytest.raises(ck.InputError, match="entry 0 has a field that is nested too deeply"):
        ck.read_items([endless])
