"""Filters on fields, beside an evaluation of each record on its own."""

import json
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import crossknn as ck
from crossknn.errors import InputError
from crossknn.index.columns import StoredRecords
from crossknn.index.filters import Fields, field_columns, parse_filter

RECORDS = [
    {"lang": "en", "year": 2019, "tags": ["a", "b"], "new": False},
    {"lang": "de", "year": 2020.5, "tags": [], "new": True},
    {"lang": None, "year": 2**60 + 1, "tags": "b", "new": True},
    {"lang": "fr", "year": float("nan"), "tags": ["a", 1, None], "other": {"x": 1}},
    {"year": [1990, 2021], "tags": "2020-05-01", "new": [True, False]},
]


@pytest.fixture(autouse=True, scope="module")
def folders_of_few_items_keep_columns():
    with pytest.MonkeyPatch.context() as patch:
        for user in ("item_index", "updates"):
            patch.setattr(f"crossknn.index.{user}.FEW", 1)
        yield


def meets(record, condition):
    """The language once more, for one record, from its description."""

    def values(name):
        value = record.get(name)
        return value if isinstance(value, list) else [] if value is None else [value]

    def alike(one, two):
        kinds = [[isinstance(value, kind) for kind in (str, bool, dict)] for value in (one, two)]
        return kinds[0] == kinds[1]

    def said(name, wanted):
        if wanted is None:
            return not values(name)
        if isinstance(wanted, list):
            return any(said(name, one) for one in wanted)
        if not isinstance(wanted, dict):
            return any(alike(v, wanted) and v == wanted for v in values(name))
        if "not" in wanted:
            return not said(name, wanted["not"])
        compare = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
        return any(
            all(alike(v, bound) and compare[how](v, bound) for how, bound in wanted.items())
            for v in values(name)
        )

    def part(name, wanted):
        if name == "any":
            return any(meets(record, one) for one in wanted)
        return not meets(record, wanted) if name == "not" else said(name, wanted)

    return all(part(name, wanted) for name, wanted in condition.items())


def of_field(name, *values, bounds=True):
    one = st.sampled_from([value for record in RECORDS for value in [record.get(name)]] + [*values])
    one = one.filter(lambda v: not isinstance(v, list) and v == v)
    ranges = st.dictionaries(
        st.sampled_from(["gt", "gte", "lt", "lte"]), st.sampled_from(values), min_size=1
    )
    simple = st.one_of(one, st.lists(one, min_size=1, max_size=3), *[ranges] * bounds)
    nested = st.recursive(simple, lambda inner: st.builds(lambda c: {"not": c}, inner))
    return st.builds(lambda c: {name: c}, nested)


def filters(orders=True):
    """Filters; without `orders` of texts and of whole numbers beyond 2^53."""
    leaves = st.one_of(
        of_field("lang", "en", "de", "e", bounds=orders),
        of_field("year", 1990, 2000, 2019.0, 2020.5, *[2**60] * orders),
        of_field("tags", "a", "b", "2020-01-01", bounds=orders),
        of_field("new", True, False, bounds=False),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda parts: {"any": parts}, st.lists(inner, min_size=1, max_size=3)),
            st.builds(lambda part: {"not": part}, inner),
            st.builds(lambda one, two: one | two, inner, inner),
        ),
        max_leaves=5,
    )


@given(condition=filters(), picked=st.lists(st.integers(0, 4), min_size=5, unique=True))
def test_a_mask_says_what_each_record_says(condition, picked):
    records = [RECORDS[row] for row in picked]
    expected = [meets(record, condition) for record in records]
    assert Fields(records).mask(parse_filter(condition)).tolist() == expected


@given(condition=filters(), order=st.permutations(RECORDS), kept=st.integers(1, 5))
def test_columns_of_the_first_records_say_the_same(condition, order, kept):
    texts, columns = [json.dumps(record) for record in order], field_columns(order[:kept])
    fields = Fields(StoredRecords(texts, columns))
    expected = [meets(record, condition) for record in order]
    assert fields.mask(parse_filter(condition)).tolist() == expected


def test_a_folder_keeps_columns_of_short_fields(tmp_path):
    def record(row):
        about = {"part": row % 3, "long": f"{row} " * 99, "\ud800": row % 2 == 0}
        return {"id": f"i{row}", "text": f"cat {row}"} | about | ({"late": 1} if row > 7 else {})

    def check(index):
        columns = index.items.extra.columns
        assert sorted(map(json.loads, columns["fields"])) == sorted(kept)
        for condition in ({"part": 1}, {"long": {"gte": "3"}}, {"\ud800": True, "part": [0, 2]}):
            found = index.allowed(condition)
            expected = [meets(one, condition) for one in index.items.extra]
            assert found.tolist() == expected
        assert index.verify() == []

    kept = ["part", "\ud800"]
    ck.ItemIndex.build([record(row) for row in range(8)], lsa=0).save(tmp_path / "index")
    index = ck.ItemIndex.load(tmp_path / "index")
    check(index)
    index.add([record(9), record(2) | {"part": 7}], replace=True)
    index.delete(["i4"])
    check(index)
    assert index.allowed({"late": 1}).tolist() == [False] * 8 + [True, False]
    assert index.allowed({"part": 7}).tolist() == [False] * 9 + [True]
    index.compact()
    kept.append("late")
    check(index)
    check(ck.ItemIndex.load(tmp_path / "index"))


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    items = [{"id": f"i{row}", "text": f"cat {row}"} | r for row, r in enumerate(RECORDS)]
    folder = tmp_path_factory.mktemp("filters") / "index"
    ck.ItemIndex.build(items, lsa=0).save(folder)
    return ck.ItemIndex.load(folder)


def test_a_search_returns_what_the_filter_allows(index, monkeypatch):
    searcher = ck.Searcher(index, lambda pairs: [len(item) for _, item in pairs], "exact")
    found = searcher.search("cat", k=5, filter={"lang": ["en", "de"], "not": {"new": True}})
    assert [hit.id for hit in found[0]] == ["i0"]
    put = index.put_artifact  # what a fit leaves does not make columns be read again
    put("something", {}, {})
    monkeypatch.delattr("crossknn.index.filters._Column")
    assert index.allowed({"lang": np.str_("fr")}).tolist() == [False] * 3 + [True, False]


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ({"lag": "en"}, "names 'lag', but no item has this field .did you mean lang"),
        ({"quux": None}, "known: lang, new, other, tags, year"),
        ({"lang": 5}, "'lang' with the number 5, but its values are texts such as 'de'"),
        (
            {"year": {"gte": "2020"}},
            "'year' with the text '2020', but its values are numbers such as",
        ),
        ({"year": True}, "'year' with the truth value True, but its values are numbers"),
        (
            {"other": "x"},
            "'other' with the text 'x', but its values are nothing that can be compared",
        ),
        ({"year": {"from": 3}}, "asks {'from': 3} of 'year': give gt, gte, lt, lte"),
        ({"year": {"gt": 3, "lt": "4"}}, "give gt, gte"),
        ({"year": {"gt": True}}, "give gt, gte"),
        ({"year": {"gt": 3, "not": 4}}, "give gt, gte"),
        ({"year": {}}, "give gt, gte"),
        ({"year": []}, "give a text, a number, true, false, null or a list"),
        ({"year": [[1]]}, "give a text, a number"),
        ({"year": float("nan")}, "give a text, a number"),
        ({"any": {"lang": "en"}}, "'any' is {'lang': 'en'}; give a list of filters"),
        ({"not": "en"}, "'en' is not a filter"),
        ({5: "en"}, "names the field 5"),
        ({}, "{} is not a filter"),
    ],
)
def test_a_wrong_filter_is_refused_in_one_sentence(index, condition, said):
    with pytest.raises(InputError, match=said) as caught:
        ck.Searcher(index, len, "retrieve").search("cat", k=1, filter=condition)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("depth", [51, 900, 100_000])
def test_a_filter_nested_too_deeply_is_refused(depth):
    condition = {"lang": "en"}
    for _ in range(depth):
        condition = {"not": condition}
    with pytest.raises(InputError, match=r"larger than the limit of .* and 50 levels"):
        parse_filter(condition)


def test_a_filter_of_very_many_conditions_is_refused():
    parse_filter({"any": [{"year": year} for year in range(1000)]})
    with pytest.raises(InputError, match="larger than the limit of 1,000 conditions"):
        parse_filter({"any": [{"year": year} for year in range(1001)]})


def test_items_without_fields_say_so():
    with pytest.raises(InputError, match="only ids, titles and texts"):
        ck.ItemIndex.build(["cat"], lsa=0).allowed({"lang": json.loads('"en"')})
