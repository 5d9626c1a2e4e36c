"""Held-out domains: what the bundled models are measured on and never trained on, as BEIR folders.

python domains.py --data DATA --out OUT [NAME ...]

Writes OUT/NAME/corpus.jsonl, queries.jsonl and qrels/test.tsv (at most 300 queries, drawn by seed),
and qrels/dev.tsv where there is one (at most 100 other queries, to fit fusion weights on). Corpora
hold at most 12,000 items, all relevant ones among them; medquad's is whole. README.md lists them,
with their sources and licences.

All of it is for evaluation only. Training leaves out the lines of tldr with a program that
`is_held_out`, docstrings with `sentence_bucket(first sentence) < 10`, the claims of scifact's train
split that `scifact_is_dev`, medquad's dev and test splits, WordNet's noun.act, and every pair with
a query or an item of these folders on one side (`evaluation_texts`, `leak`): Wordset, for one, has
a thousand glosses of noun.act, and tldr some descriptions of packages and manual pages.
"""

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from debian import debian, debian_items
from domain import HERE, ITEMS, SEED, Domain, Qrels, grouped, halves, lines_of, read_tsv, words_of
from python_docs import docstrings, pydocs, sentence_bucket

PER_PROGRAM = 100


def man(given: argparse.Namespace) -> Domain:
    """Pages of sections 1 and 8; of a program (the name up to its first hyphen) PER_PROGRAM at
    most. Needs the program `man`. Descriptions that name the page are no queries; pages that say
    the same in NAME are relevant together."""
    by_program, seen = defaultdict(list), set()
    for path in sorted(f for s in ("man1", "man8") for f in (given.man / s).glob("*.gz")):
        real = path.resolve()
        if real not in seen and real.is_file():
            seen.add(real)
            by_program[re.split(r"[-_.]", path.name)[0]].append(real)
    items, pairs = {}, []
    for _, pages in sorted(by_program.items()):
        for path in random.Random(SEED).sample(pages, min(PER_PROGRAM, len(pages))):
            names, about, text = _page(path)
            title = re.sub(r"\.(\d\w*)\.gz$", r"(\1)", path.name)
            own = {words_of(name) for name in [*names, title.partition("(")[0]]}
            if len(text.split()) >= 30:
                items[title] = (title, text)
                named = own.intersection(words_of(about).split())
                spoilt = named or re.search(r"man(ual)? ?page|\s-\w", about)
                if 3 <= len(about.split()) <= 40 and not spoilt:
                    pairs.append((about, title))
    queries, qrels = grouped(pairs, "man")
    return Domain(items, queries, *halves(qrels))


def _page(path: Path) -> tuple[list[str], str, str]:
    """(names and description in NAME, the first 3,000 characters of the other sections)."""
    environment = os.environ | {"MANWIDTH": "2000", "LC_ALL": "C.UTF-8"}
    command = ["man", "-E", "UTF-8", "--no-hyphenation", "--no-justification", "-P", "cat", "-l"]
    run = subprocess.run([*command, str(path)], capture_output=True, env=environment, check=False)
    plain = re.sub(r".\x08|\x1b\[[\d;]*m", "", run.stdout.decode(errors="replace"))
    sections, name = defaultdict(list), ""
    for line in plain.splitlines()[1:-1]:  # without header and footer
        if re.match(r"\S", line):
            name = line.strip().upper()
        elif name:
            sections[name].append(line.strip())
    about = re.sub(r"\s+", " ", " ".join(sections.pop("NAME", [])))
    head, _, about = re.sub(r"\s[\u2010-\u2015\u2212-]{1,2}\s", "\0", about).partition("\0")
    text = "\n".join(f"{name}\n" + "\n".join(part).strip() for name, part in sections.items())
    text = re.sub(r"[ \t]{2,}", " ", re.sub(r"\n{3,}", "\n\n", text))
    return re.split(r"[\s,]+", head.strip()), about.strip(), text[:3_000].strip()


# Sets made by others


def nfcorpus(given: argparse.Namespace) -> Domain:
    """BEIR's NFCorpus: titles, with its graded judgements."""
    with zipfile.ZipFile(given.data / "nfcorpus.zip") as archive:
        rows = [json.loads(line) for line in archive.read("corpus/human.jsonl").splitlines()]
        queries = [json.loads(line) for line in archive.read("queries.jsonl").splitlines()]
        splits = [_qrels(archive.read(f"qrels/{s}.tsv").decode()) for s in ("test", "dev")]
    items = {row["_id"]: (row["title"], row["text"]) for row in rows}
    return Domain(items, {row["_id"]: row["text"] for row in queries}, *splits)


def _qrels(text: str) -> Qrels:
    qrels: Qrels = defaultdict(dict)
    for line in text.splitlines()[1:]:
        query, item, grade = line.split("\t")
        if int(grade) > 0:
            qrels[query][item] = int(grade)
    return dict(qrels)


def beir(name: str, most: int = ITEMS) -> Callable[[argparse.Namespace], Domain]:
    """A BEIR folder; scifact, which has no dev split, takes it from its train queries."""

    def build(given: argparse.Namespace) -> Domain:
        folder = given.data / name
        items = {row["_id"]: (row.get("title") or "", row["text"])
                 for row in lines_of(folder / "corpus.jsonl")}  # fmt: skip
        queries = {row["_id"]: row["text"] for row in lines_of(folder / "queries.jsonl")}
        test = _qrels((folder / "qrels/test.tsv").read_text(encoding="utf-8"))
        dev = _qrels((folder / f"qrels/{'train' if name == 'scifact' else 'dev'}.tsv").read_text())
        if name == "scifact":
            dev = {query: found for query, found in dev.items() if scifact_is_dev(queries[query])}
        return Domain(items, queries, test, dev, most)

    return build


def scifact_is_dev(claim: str) -> bool:
    """Whether a claim of scifact's train split is kept for dev: about one in five."""
    return sentence_bucket(claim) < 20


def cosqa(given: argparse.Namespace) -> Domain:
    """The retrieval splits of CoSQA's authors, among all their functions."""
    folder = given.data / "cosqa"
    functions = json.loads((folder / "code_idx_map.txt").read_text(encoding="utf-8"))
    items = {str(number): ("", code) for code, number in functions.items()}
    queries, splits = {}, []
    for split in "test", "dev":
        rows = json.loads((folder / f"cosqa-retrieval-{split}-500.json").read_text("utf-8"))
        pairs = [(row["doc"], str(row["retrieval_idx"])) for row in rows if row["label"] == 1]
        texts, qrels = grouped(pairs, f"{split}-")
        queries |= texts
        splits.append(qrels)
    return Domain(items, queries, *splits)


def faq(given: argparse.Namespace) -> Domain:
    """Paraphrases -> all answers to the question, which itself is nowhere. A quarter of the
    questions is for dev."""
    threads = json.loads((given.data / "stackfaq.json").read_text("utf-8"))["root"]["qapair"]
    chosen = set(random.Random(SEED).sample(range(len(threads)), len(threads) // 4))
    items, queries, splits = {}, {}, ({}, {})
    for number, thread in enumerate(threads):
        answers = [thread["answer"]] if isinstance(thread["answer"], str) else thread["answer"]
        found = {f"{number}-{place}": 1 for place in range(len(answers))}
        items |= {item: ("", text) for item, text in zip(found, answers, strict=True)}
        for place, text in enumerate(t for t in thread["rephr"] if (t or "").strip("* ")):
            queries[f"faq{number}-{place}"] = text
            splits[number in chosen][f"faq{number}-{place}"] = found
    return Domain(items, queries, *splits)


def senses(given: argparse.Namespace) -> Domain:
    """WordNet's noun.act: a word and a sentence with it -> the word's sense there."""
    folder = given.data / "wordnet"
    rows = lines_of(folder / "documents/noun.act.json")
    mentions = lines_of(folder / "processed/test_worlds/noun.act_mentions.jsonl")
    queries = {}
    for row in mentions:
        sentence = f"{row['context_left']} {row['mention']} {row['context_right']}".strip()
        queries[row["mention_id"]] = f"{row['mention']}: {sentence}"
    qrels = {row["mention_id"]: {row["label_document_id"]: 1} for row in mentions}
    items = {row["document_id"]: (row["title"], row["text"]) for row in rows}
    return Domain(items, queries, *halves(qrels))


# tldr pages


def is_held_out(command: str) -> bool:
    """Whether a program's tldr pages are kept out of training, by the hash of its first word: about
    half. `git`, `git add` and `Git` are one program."""
    word = command.split()[0].lower() if command.split() else ""
    return hashlib.blake2b(word.encode()).digest()[0] % 2 == 0


def is_description(query: str, text: str) -> bool:
    """Whether a line of tldr.jsonl has a command and its description, not a task and its line."""
    sentence = re.fullmatch(r"[A-Z]\S*\s.*[.!)]", text, re.DOTALL)
    command = re.match(r"\w+-[A-Z]|[A-Z]{2,} [\w.]*/|VBoxManage", text)
    task = len(query.split()) > 4 or re.match(r"[A-Z][a-z]+ [a-z]", query)
    return bool(sentence and not command and not task)


def programs(query: str, text: str) -> list[str]:
    """Programs that a line of tldr.jsonl is about, the first one first. Training leaves out a line
    if any of them `is_held_out`; the test takes it if the first is."""
    if is_description(query, text) or len(query.split()) == 1:
        return [query.split()[0]]
    parts = (part.split() for part in re.split(r"\|\||\||&&|;|\$\(|<\(", text))
    found = [[w for w in part if w not in ("sudo", "command", "{", "(")] for part in parts]
    return [part[0] for part in found if part]


def tldr_lines(data: Path) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """(description of each held-out command, held-out task lines)."""
    about, tasks = {}, []
    for row in lines_of(data / "general/tldr.jsonl.gz"):
        query, text = row["query"], row["text"]
        names = programs(query, text)
        if not names or not is_held_out(names[0]) or names[0] == "tldr":
            continue
        if is_description(query, text):
            about.setdefault(query, text)
        elif query.split():
            tasks.append((query, text))
    return about, tasks


def _command(line: str, about: Mapping[str, str]) -> str:
    """The longest command with a description that a command line begins with."""
    words = [w for w in line.split() if w != "sudo"]
    starts = (" ".join(words[:size]) for size in (3, 2, 1))
    return next((start for start in starts if start in about), "")


def tldr(given: argparse.Namespace) -> Domain:
    """Tasks of four or more words that stand once in the file -> their command line."""
    about, tasks = tldr_lines(given.data)
    counts, items, pairs = Counter(words_of(task) for task, _ in tasks), {}, []
    ids: dict[str, str] = {}
    for task, line in tasks:
        name = _command(line, about)
        title = f"{name}: {about[name]}" if name else ""
        item = ids.setdefault(line, f"line{len(ids)}")
        items[item] = (title, line)
        if counts[words_of(task)] == 1 and len(task.split()) >= 4 and title:
            pairs.append((task, item))
    queries, qrels = grouped(pairs, "task")
    return Domain(items, queries, *halves(qrels))


def tldr_pages(given: argparse.Namespace) -> Domain:
    """First sentence of a command's description, without the command -> its tasks and lines."""
    about, tasks = tldr_lines(given.data)
    pages, pairs = defaultdict(list), []
    for task, line in tasks:
        if name := _command(line, about):
            pages[name].append(f"{task}: {line}")
    for name in pages:
        sentence = re.split(r"(?<=[.!?])\s", about[name])[0].rstrip(".")
        own = name.lower().split()
        words = [w for w in sentence.split() if w.strip(".,:;()'\"").lower() not in own]
        if len(words) >= 4 and not re.search(r"alias of|superseded|See also", sentence):
            pairs.append((" ".join(words), name))
    queries, qrels = grouped(pairs, "page")
    items = {name: (name, "\n".join(lines)) for name, lines in pages.items()}
    return Domain(items, queries, *halves(qrels))


# The documentation of Python's standard library


def everyday(name: str) -> Callable[[argparse.Namespace], Domain]:
    """The everyday questions of one domain; any relevant item is right as the first answer."""

    def build(given: argparse.Namespace) -> Domain:
        if name == "debian":
            items = debian_items(given)
        else:
            items = {n: ("", f"{n}{s}\n{text}") for n, (s, text) in docstrings().items()}
        pairs = []
        for domain, query, right in read_tsv(HERE / "everyday.tsv"):
            if domain == name:
                pairs += [(query, item) for item in right.split() if item in items]
        queries, qrels = grouped(pairs, "day")
        return Domain(items, queries, qrels)

    return build


def evaluation_texts(out: Path) -> set[str]:
    """The words of all queries and items of four words or more in the folders below OUT, glosses
    and sentences of `senses` among them. Training leaves out pairs that `leak`."""
    known = set()
    for path in [*out.glob("*/queries.jsonl"), *out.glob("*/corpus.jsonl")]:
        for row in lines_of(path):
            sentence = row["text"].partition(": ")[2] if path.parent.name == "senses" else ""
            known.update(words_of(text) for text in (row["text"], sentence))
    return {words for words in known if len(words.split()) > 3}


def leak(query: str, text: str, known: set[str]) -> bool:
    """Whether one side of a training pair is a query or an item of a held-out domain."""
    return words_of(query) in known or words_of(text) in known


DOMAINS: dict[str, Callable[[argparse.Namespace], Domain]] = {
    "debian": debian,
    "debian-long": lambda given: debian(given, whole=True),
    "man": man,
    "nfcorpus": nfcorpus,
    "cosqa": cosqa,
    "tldr": tldr,
    "tldr-pages": tldr_pages,
    "faq": faq,
    "senses": senses,
    "scifact": beir("scifact"),
    "medquad": beir("medquad", most=20_000),
    "pydocs": pydocs,
    "everyday-debian": everyday("debian"),
    "everyday-pydocs": everyday("pydocs"),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="domains; without, all")
    parser.add_argument("--data", type=Path, required=True, help="folder of the sources")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the domains to")
    lists, pages = Path("/var/lib/apt/lists"), Path("/usr/share/man")
    parser.add_argument("--lists", type=Path, default=lists, help=f"apt's lists ({lists})")
    parser.add_argument("--man", type=Path, default=pages, help=f"manual pages ({pages})")
    given = parser.parse_args()
    for name in given.names or DOMAINS:
        print(DOMAINS[name](given).drawn().write(given.out / name), flush=True)
