"""Public docstrings: a sentence; where there are three parameters or more, what each of them is."""

import inspect
import re
from functools import cached_property

import pytest

import crossknn as ck
from crossknn import extend

PUBLIC = {name: getattr(home, name) for home in (ck, extend) for name in home.__all__}
PUBLIC = {name: value for name, value in PUBLIC.items() if callable(value)}


def sections(documented, name):
    """The text of all sections of this name (`Args`) in the docstrings of objects."""
    texts = "\n".join(inspect.cleandoc(each.__doc__ or "") + "\n" for each in documented)
    return "\n".join(re.findall(rf"^{name}:\n((?: .*\n|\n)*)", texts, re.MULTILINE))


def listed(documented):
    """Parameters that have an entry: `name: ...`, or several with one, `name, other: ...`."""
    entries = re.findall(r"^    (\w+(?:, \w+)*): \S", sections(documented, "Args"), re.MULTILINE)
    return {name for entry in entries for name in entry.split(", ")}


def unnamed(function, documented):
    """Parameters without an entry; of one or two, the summary can say what they are."""
    parameters = set(inspect.signature(function).parameters) - {"self", "cls"}
    return parameters - listed(documented) if len(parameters) > 2 else set()


def own_methods(kind):
    """Public methods that a class defines, but for those that are documented where they override:
    by a base class, or by the protocol that the docstring names (`See `VectorStore.top``)."""
    for name, value in vars(kind).items():
        method = getattr(value, "__func__", value)
        inherited = any(getattr(base, name, None) for base in kind.__mro__[1:])
        refers = re.search(r"[Ss]ee `\w+\.\w+`", getattr(method, "__doc__", None) or "")
        if not (name.startswith("_") or inherited or refers):
            yield name, method


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_documented(name):
    found = PUBLIC[name]
    assert inspect.cleandoc(found.__doc__ or "").split("\n\n")[0].endswith((".", ":"))
    if not inspect.isclass(found):
        assert not unnamed(found, [found])
        return
    if not issubclass(found, Exception) and not getattr(found, "_is_protocol", False):
        assert not unnamed(found, found.__mro__)
    for own, method in own_methods(found):
        if isinstance(method, property | cached_property):
            assert method.__doc__, own
        elif inspect.isfunction(method):
            assert method.__doc__, own
            assert not unnamed(method, [method]), own
