"""Golden picks: which items each method scores, in order, with every option that changes that."""

from __future__ import annotations

from dataclasses import fields

import pytest

from golden.adapter import METHODS, NEW_NAMES, OLD_NAMES
from golden.cases import cases, defaults
from golden.record import recorded, summary

KNOWN = recorded()
GROUPS: dict[str, list] = {}
for _key, _search in cases():
    GROUPS.setdefault(_key.partition("(")[0], []).append((_key, _search))


@pytest.mark.parametrize("group", GROUPS)
def test_the_same_items_are_scored_in_the_same_order(group):
    differing = []
    for key, search in GROUPS[group]:
        if key not in KNOWN:
            continue  # dropped: it differs between counts of threads
        now = [summary(picks) for picks in search()]
        differing += [
            f"{key}: query {q} was {before}, is {after}"
            for q, (before, after) in enumerate(zip(KNOWN[key], now, strict=True))
            if before != after
        ]
    assert not differing, "\n".join([f"{len(differing)} rows differ:", *differing[:12]])


def test_nearly_all_cases_are_recorded():
    missing = [key for group in GROUPS.values() for key, _ in group if key not in KNOWN]
    assert len(missing) <= 12, missing


def test_every_option_of_every_method_has_its_default_written_down():
    for name, kind in METHODS.items():
        name = NEW_NAMES.get(name, name)
        words = {OLD_NAMES.get(option, option) for option in defaults()[name]}
        assert {field.name for field in fields(kind)} == words
