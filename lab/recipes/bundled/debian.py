"""Debian packages: what everyday people might install, and their wishes, judged by hand."""

from __future__ import annotations

import argparse
import random
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from domain import HERE, SEED, Domain, grouped, read_tsv

SECTIONS = {
    "games": 250, "utils": 330, "sound": 180, "graphics": 180, "net": 150, "admin": 150,
    "x11": 120, "text": 120, "gnome": 110, "video": 90, "misc": 90, "web": 80, "editors": 70,
    "mail": 60, "kde": 60, "math": 25, "vcs": 20, "xfce": 20, "shells": 15, "education": 10,
    "news": 8,
}  # fmt: skip
"""How many packages of a section: half are those that most other sources name in Depends,
Recommends, Suggests or Enhances, and half a seeded draw of the others."""
KNOWN = (HERE / "known.txt").read_text().split()
"""Programs that many people know, whatever the draw."""
NOT_A_PROGRAM = re.compile(
    r"(lib(?!reoffice-(calc|writer|impress|draw|math|base)$)|python|ruby|php|node-|golang|r-|task-"
    r"|fonts-|gir1|linux-|elpa-|emacs-|vim-|texlive-|xserver-|collectd|gstreamer|fcitx|ibus-"
    r"|aspell-|gcompris-|ucspi|hyphen-|kodi-|lv2|pidgin-|erlang|openstack|neutron|nova-|sugar-).*"
    r"|.*-(data|common|dev|docs?|dbg|dbgsym|l10n|i18n|locales?|plugins?|plugin-.*|bin|core|server-.*"
    r"|modules?|themes?|icons?|backends?|backend-.*|extras?|levels?|music|sounds?|runtime|client-.*"
    r"|legacy|transitional|config|greeter|applet-.*|maps|addons?|addon-.*|extensions?|lang|manual"
    r"|examples?|all|full|lite|minimal|nox|tiny|l10n-.*|assets|base|\d[\d.]*)"
)
NOT_A_WISH = re.compile(
    r"transitional|dummy|meta-? ?package|plug-?in|\bmodules?\b|documentation|(common|shared) files"
    r"|\bdata files|\(data|(shared|runtime|python|perl|c\+\+|development) librar|headers?\b"
    r"|bindings?|\btheme|icon set|support files|files? for\b|translations? for|debugging symbols"
    r"|driver for|openstack|add-?on|examples|architecture.independent",
    re.IGNORECASE,
)


@cache
def debian_lists(folder: Path) -> dict[str, dict[str, str]]:
    """Every package of the release's main list; `Long` is its long description where known."""
    packages = {}
    [file] = folder.glob("*dists_bookworm_main_binary-amd64_Packages*")
    for fields in _paragraphs(file):
        packages[fields["Package"]] = fields
    for file in folder.glob("*dists_bookworm_main_i18n_Translation-en*"):
        for fields in _paragraphs(file):
            _, _, text = fields.get("Description-en", "").partition("\n")
            if fields["Package"] in packages:
                packages[fields["Package"]]["Long"] = text
    return packages


def _paragraphs(file: Path) -> Iterator[dict[str, str]]:
    command = ["/usr/lib/apt/apt-helper", "cat-file", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for paragraph in text.split("\n\n"):
        fields, name = {"": ""}, ""
        for line in paragraph.splitlines():
            if line.startswith(" "):
                fields[name] += "\n" + line[1:]
            else:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if "Package" in fields:
            yield fields


def debian_names(packages: dict[str, dict[str, str]]) -> list[str]:
    """About 2,400 packages that people know or might want: those of priority required, important or
    standard, KNOWN, and SECTIONS of those that look like programs by name, tags and description."""
    named: dict[str, set[str]] = defaultdict(set)
    source = {n: fields.get("Source", n).split()[0] for n, fields in packages.items()}
    for name, fields in packages.items():
        relations = (fields.get(f, "") for f in ("Depends", "Recommends", "Suggests", "Enhances"))
        for other in re.split(r"[,|]", ",".join(relations)):
            other = re.split(r"[ :(]", other.strip())[0]
            if source.get(other, source[name]) != source[name]:
                named[other].add(source[name])
    kept, pools = packages.keys() & set(KNOWN), defaultdict(list)
    for name, fields in sorted(packages.items()):
        tags, short = fields.get("Tag", ""), fields["Description"].splitlines()[0]
        if fields["Priority"] in ("required", "important", "standard"):
            if not name.startswith("lib"):
                kept.add(name)
        elif not (NOT_A_PROGRAM.fullmatch(name) or NOT_A_WISH.search(short)) and (
            "role::program" in tags or "role::" not in tags
        ):
            pools[fields["Section"]].append(name)
    for section, count in SECTIONS.items():
        pool = sorted(pools[section], key=lambda name: (-len(named[name]), name))
        kept.update(pool[: count // 2])
        others = pool[count // 2 :]
        kept.update(random.Random(SEED).sample(others, min(count - count // 2, len(others))))
    return sorted(kept)


def debian_items(given: argparse.Namespace, whole: bool = False) -> dict[str, tuple[str, str]]:
    """Name and description of every package of the corpus."""
    packages = debian_lists(given.lists)
    items = {}
    for name in debian_names(packages):
        text = packages[name]["Description"].splitlines()[0]
        if whole:
            lines = packages[name].get("Long", "").splitlines()
            text += "\n" + "\n".join("" if line.strip() == "." else line.strip() for line in lines)
        items[name] = (name, text.strip())
    return items


def debian(given: argparse.Namespace, whole: bool = False) -> Domain:
    """Wishes judged by hand; every package of the corpus that fits is relevant."""
    items, pairs = debian_items(given, whole), []
    for query, names in read_tsv(HERE / "debian.tsv"):
        pairs += [(query, name) for name in names.split() if name in items]
    queries, qrels = grouped(pairs, "deb")
    return Domain(items, queries, qrels)


# Manual pages
