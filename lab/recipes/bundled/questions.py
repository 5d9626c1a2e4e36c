"""Questions people ask, made of first sentences of documentation: another form and other words.

"Extract all members from the archive." may become "how do I unpack all items from a zip file".
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

FORMS = (
    ("how do i {}", 5),
    ("how to {}", 3),
    ("how can i {}", 1),
    ("{} in python", 2),
    ("python {}", 1),
    ("{}", 4),
    ("what is the way to {}", 1),
    ("function to {}", 1),
    ("i want to {}", 1),
)
WORD, WORDS = 3, 12
"""A question has so many words at least and at most, without its form."""
VERB, NOUN = 0.6, 0.6
"""How likely a word is exchanged."""

_MARKUP = re.compile(r":[\w:]+:`~?(?:[\w.]*\.)?(\w+)[^`]*`|`+~?([^`]+)`+|\*+(\S[^*]*)\*+")
_END = re.compile(
    r"\s*(?:[.;:,(\[]|\s-+\s|\b(?:which|that is|using|where|such that|so that|based on"
    r"|according to|as well as|i\.e|e\.g)\b)"
)
_DROPPED = re.compile(r"\b(?:given|specified|provided|passed|supplied|new|underlying) (?=\w)")


def _groups(path: Path) -> dict[str, dict[str, list[str]]]:
    """By section (verbs, nouns) and word: the words it may be exchanged for."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        words = line.split(", ")
        if words in (["verbs"], ["nouns"]):
            section = sections.setdefault(words[0], {})
            continue
        for word in words:
            section.setdefault(word, []).extend(w for w in words if w != word)
    return sections


THESAURUS = _groups(Path(__file__).parent / "thesaurus.txt")
_NOUN = re.compile(rf"\b({'|'.join(sorted(THESAURUS['nouns'], key=len, reverse=True))})(s?)\b")


def question(sentence: str, generator: Random) -> str | None:
    """A question of a sentence that begins with a known verb, with at least one word exchanged."""
    plain = _MARKUP.sub(lambda found: next(filter(None, found.groups())), sentence)
    first, _, rest = plain.strip().partition(" ")
    verb = _base(first.lower())
    if verb is None:
        return None
    if about := re.match(r"(?:True|a boolean \w+|whether)\b.*?\b(?:if|whether|when|iff)?\b ", rest):
        if not re.search(r"if|whether|when", about[0]):
            return None
        verb, rest = "check", "if " + rest[about.end() :]
    end = _END.search(rest)
    rest = _DROPPED.sub("", (rest[: end.start()] if end else rest).lower())
    if not WORD <= 1 + len(rest.split()) <= WORDS or re.search(r"[^\w\s'/-]", rest):
        return None
    other = _NOUN.sub(lambda found: _exchanged(found, generator), rest)
    other = re.sub(r"\bthe\b", lambda _: generator.choice(("the", "a", "my")), other)
    known = THESAURUS["verbs"][verb]
    said = generator.choice(known) if known and generator.random() < VERB else verb
    if said == verb and other == rest:
        return None
    form = generator.choices([form for form, _ in FORMS], [weight for _, weight in FORMS])[0]
    if form == "{}" and " " not in said and generator.random() < 0.5:
        said = _gerund(said)
    return form.format(f"{said} {other}".strip())


def _base(word: str) -> str | None:
    """The verb of the thesaurus that a word is: "returns", "copies"."""
    forms = (word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word))
    return next((form for form in forms if form in THESAURUS["verbs"]), None)


def _exchanged(found: re.Match[str], generator: Random) -> str:
    known = THESAURUS["nouns"][found[1]]
    if generator.random() > NOUN:
        return found[0]
    other = generator.choice(known)
    return re.sub("([^aeiou])ys$", r"\1ies", other + "s") if found[2] else other


def _gerund(verb: str) -> str:
    """ "making", "splitting", "opening": one syllable doubles its last consonant."""
    if re.fullmatch(r"[^aeiou]*[aeiou][^aeiouwxy]", verb):
        return verb + verb[-1] + "ing"
    return re.sub(r"(?<=[^e])e$", "", verb) + "ing"
