"""Golden picks: which items each method scores, in order, with every option that changes that."""

from __future__ import annotations

import json
from dataclasses import fields
from hashlib import sha256

import pytest
from recorded import RECORDING, check, recorded

from crossknn.methods import METHODS
from golden.cases import cases, defaults

KNOWN = recorded("picks.json")
GROUPS: dict[str, list] = {}
for _key, _search in cases():
    GROUPS.setdefault(_key.partition("(")[0], []).append((_key, _search))


def summary(picks):
    """Of one query's [(item, round)]: a digest of all, and the first items to read."""
    digest = sha256(json.dumps(picks).encode()).hexdigest()[:8]
    return f"{digest} {len(picks)}:{' '.join(str(item) for item, _ in picks[:4])}"


SLOW = ("wordnet kriging",)


@pytest.mark.parametrize(
    "group", [pytest.param(g, marks=pytest.mark.slow) if g in SLOW else g for g in GROUPS]
)
def test_the_same_items_are_scored_in_the_same_order(group):
    searches = {k: search for k, search in GROUPS[group] if k in KNOWN or RECORDING}
    found = {key: [summary(picks) for picks in search()] for key, search in searches.items()}
    check("picks.json", found, whole=False)


def test_nearly_all_cases_are_recorded():
    missing = [key for group in GROUPS.values() for key, _ in group if key not in KNOWN]
    assert len(missing) <= 12, missing  # they differ between counts of threads


def test_every_option_of_every_method_has_its_default_written_down():
    for name, kind in METHODS.items():
        assert {field.name for field in fields(kind)} == set(defaults()[name])
