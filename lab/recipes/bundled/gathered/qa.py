#!/usr/bin/env python3
"""Makes query -> text training pairs from question-answering data sets with free licences.

Reads bare git snapshots of public repositories (folder MIRROR, one "owner+name" each), writes one
gzip part file per data set, qa-NN.jsonl.gz, lines {"query","text","label","source"}, and qa.tsv
(set, owner/repo@commit, path, licence).  Run:  qa.py [set ...]   (no argument: every set)
"""
import ast, csv, glob, gzip, html, io, json, os, random, re, subprocess, sys
from collections import defaultdict

MIRROR = os.environ["MIRROR"]
OUT = os.environ.get("OUT", os.path.dirname(os.path.abspath(__file__)))
MAX_TEXT, MAX_QUERY_WORDS, MAX_PAIRS = 1500, 60, 15000
csv.field_size_limit(1 << 30)


# ---------------------------------------------------------------- reading repositories
USED = []                                   # (repo@commit, path) read by the set being made


def git_dir(repo):
    base = os.path.join(MIRROR, repo.replace("/", "+"), "repo")
    return os.path.join(base, ".git") if os.path.isdir(os.path.join(base, ".git")) else base


def git(repo, *args):
    return subprocess.run(["git", "-C", git_dir(repo), *args], capture_output=True, check=True).stdout


def commit(repo):
    return git(repo, "rev-parse", "HEAD").decode().strip()


def note(repo, path):
    USED.append((f"{repo}@{commit(repo)}", path))


def blob(repo, path, log=True):
    if log:
        note(repo, path)
    return git(repo, "show", f"HEAD:{path}")


def text_of(repo, path, log=True):
    return blob(repo, path, log).decode("utf-8", "replace").replace("\0", "")


def load_json(repo, path):
    return json.loads(text_of(repo, path))


def load_jsonl(repo, path):
    raw = blob(repo, path)
    if path.endswith(".gz"):
        raw = gzip.decompress(raw)
    return [json.loads(l) for l in raw.decode("utf-8", "replace").splitlines() if l.strip()]


def json_any(repo, path):
    """A JSON list, or one JSON value a line."""
    raw = text_of(repo, path)
    try:
        return json.loads(raw)
    except ValueError:
        return [json.loads(l) for l in raw.splitlines() if l.strip()]


def load_csv(repo, path, delimiter=",", quoting=csv.QUOTE_MINIMAL):
    return list(csv.DictReader(io.StringIO(text_of(repo, path)), delimiter=delimiter, quoting=quoting))


def many(repo, pattern, prefix=""):
    """Yields (path, text) of every file whose path matches, through one `git cat-file --batch`."""
    rx, names = re.compile(pattern), []
    for line in git(repo, "ls-tree", "-r", "-z", "HEAD", *([prefix] if prefix else [])).split(b"\0"):
        if line:
            meta, path = line.decode("utf-8", "replace").split("\t", 1)
            if rx.search(path):
                names.append((meta.split()[2], path))
    note(repo, f"{prefix or '.'} ({pattern})")
    p = subprocess.Popen(["git", "-C", git_dir(repo), "cat-file", "--batch"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for sha, path in names:
        p.stdin.write(sha.encode() + b"\n")
        p.stdin.flush()
        head = p.stdout.readline().split()
        if len(head) != 3:                  # "<sha> missing": a file above 4 MiB
            continue
        body = p.stdout.read(int(head[2]))
        p.stdout.read(1)
        yield path, body.decode("utf-8", "replace")
    p.stdin.close()
    p.wait()


# ---------------------------------------------------------------- text helpers
def squash(s):
    return re.sub(r"\s+", " ", s or "").strip()


def lines_of(s):
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+", " ", s or "")).strip()


def cut(text, answer=None, limit=MAX_TEXT):
    """At most `limit` characters of text, cut at sentence ends, holding the answer where there is one."""
    text = text.strip()
    if len(text) <= limit:
        return text
    at = text.find(answer) if isinstance(answer, str) and answer else (answer if isinstance(answer, int) else 0)
    at = max(at, 0)
    ends = [0] + [m.end() for m in re.finditer(r"[.!?][\"')\]]*\s|\n", text)] + [len(text)]
    alen = len(answer) if isinstance(answer, str) else 0
    start = 0
    if at + alen > limit - 100:             # begin at a sentence start some way before the answer
        before = [e for e in ends if at - limit // 2 <= e <= at]
        start = before[0] if before else max(0, at - limit // 2)
    stop = [e for e in ends if start < e <= start + limit and e >= at + alen]
    return text[start:stop[-1] if stop else start + limit].strip()


def strip_html(s, code=True):
    s = re.sub(r"(?is)<(script|style).*?</\1>", " ", s)
    s = re.sub(r"(?i)<(/p|br|/li|/h\d|/pre|/tr)[^>]*>", "\n", s)
    return lines_of(html.unescape(re.sub(r"<[^>]+>", "", s)))


def untok(s):
    """Undoes Penn Treebank / WordPiece-like spacing."""
    s = s.replace("-lrb-", "(").replace("-rrb-", ")").replace("-LRB-", "(").replace("-RRB-", ")")
    s = s.replace("-LSB-", "[").replace("-RSB-", "]").replace("``", '"').replace("''", '"')
    s = re.sub(r" ([,.;:?!%)\]])", r"\1", s)
    s = re.sub(r"([(\[$]) ", r"\1", s)
    s = re.sub(r" (n't|'s|'re|'ve|'ll|'d|'m|')\b", r"\1", s)
    s = re.sub(r" -- ", " - ", s)
    return squash(re.sub(r'" ([^"]*?) "', r'"\1"', s))


def markdown(s):
    s = re.sub(r"(?s)<!--.*?-->", "", s)
    s = re.sub(r"(?s)```.*?```", lambda m: m.group(0) if len(m.group(0)) < 300 else "", s)
    s = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|:::.*|\[!\w+\]", "", s)
    s = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", s)
    s = re.sub(r"\[([^\]]*)\]\([^)]*\)(\{[^}]*\})?", r"\1", s)
    s = re.sub(r"\[([^\]]*)\]\[[^\]]*\]", r"\1", s)
    s = re.sub(r"(?m)^\[[^\]]+\]:.*$", "", s)
    s = re.sub(r"\*\*|__", "", s)
    s = re.sub(r"(?m)^\s*>\s?", "", s)
    return lines_of(html.unescape(re.sub(r"</?[a-zA-Z][^>]*>", "", s)))


def front_matter(s):
    m = re.match(r"\ufeff?---\s*\n(.*?)\n---\s*\n(.*)", s, re.S)
    if not m:
        return {}, s
    meta = {}
    for k, v in re.findall(r"(?m)^([A-Za-z_.]+):[ \t]*(.*(?:\n[ \t]+[^\s-].*)*)$", m.group(1)):
        v = squash(v)
        meta[k] = v[1:-1].replace("''", "'") if len(v) > 1 and v[0] == v[-1] and v[0] in "'\"" else v
    return meta, m.group(2)


def sections(body):
    """[(heading, text)] of a markdown body; the text before the first heading has heading ''."""
    out, head, buf, fence = [], "", [], False
    for line in body.splitlines():
        if line.strip().startswith("```"):
            fence = not fence
        m = None if fence else re.match(r"#{1,5}\s+(.*?)\s*#*\s*(\{.*\})?$", line)
        if m:
            out.append((head, "\n".join(buf)))
            head, buf = squash(markdown(m.group(1))), []
        else:
            buf.append(line)
    out.append((head, "\n".join(buf)))
    return [(h, markdown(t)) for h, t in out]


SETS = {}                                   # name -> (licence, function)


def dataset(name, licence):
    def add(f):
        SETS[name] = (licence, f)
        return f
    return add


# ---------------------------------------------------------------- questions on Wikipedia passages
def squad_form(data):
    for art in data["data"]:
        for p in art["paragraphs"]:
            for q in p["qas"]:
                ans = q.get("answers") or []
                if q.get("is_impossible"):
                    yield q["question"], cut(p["context"]), 0
                elif ans:
                    yield q["question"], cut(p["context"], ans[0]["text"]), 1


@dataset("squad", "CC BY-SA 4.0 (SQuAD 1.1/2.0; XQuAD)")
def _(rng):
    yield from (x for x in squad_form(load_json("chrischute/squad", "data/dev-v2.0.json")) if x[2])
    yield from squad_form(load_json("deepmind/xquad", "xquad.en.json"))
    for repo, path in [("bigai-nlco/RouterLens", "data/squad/dev.json"),
                       ("EmptyCityJK/flan-response-evaluator", "data/squad/train.json"),
                       ("EmptyCityJK/flan-response-evaluator", "data/squad/valid.json")]:
        for r in load_json(repo, path):
            for q in r.get("qas") or [r]:
                yield q["question"], cut(r["context"], q["answer"]), 1


@dataset("squad2-unanswerable", "CC BY-SA 4.0 (SQuAD 2.0): question the passage does not answer, label 0")
def _(rng):
    yield from (x for x in squad_form(load_json("chrischute/squad", "data/dev-v2.0.json")) if not x[2])


@dataset("squad-sentence", "CC BY-SA 4.0 (SQuAD 1.1, split of Du et al. 2017; lower case)")
def _(rng):
    for part in "dev", "test":
        src = text_of("xinyadu/nqg", f"data/processed/src-{part}.txt").splitlines()
        tgt = text_of("xinyadu/nqg", f"data/processed/tgt-{part}.txt").splitlines()
        for s, t in zip(src, tgt):
            yield untok(t), cut(untok(s)), 1


@dataset("qnli", "CC BY-SA 4.0 (made from SQuAD)")
def _(rng):
    for line in text_of("jonny-vr/LLMCBench", "data/QNLI/dev.tsv").splitlines()[1:]:
        f = line.split("\t")
        if len(f) == 4:
            yield f[1], cut(f[2]), int(f[3] == "entailment")


@dataset("nq-open", "CC BY-SA 3.0 (Natural Questions, Wikipedia); code MIT")
def _(rng):
    for r in load_jsonl("nelson-liu/lost-in-the-middle", "qa_data/nq-open-oracle.jsonl.gz"):
        for c in r["ctxs"]:
            if c.get("isgold"):
                yield r["question"], cut(c["title"] + ". " + squash(c["text"])), 1


@dataset("nq-qed", "CC BY-SA 3.0 (QED, Natural Questions)")
def _(rng):
    for r in load_jsonl("google-research-datasets/QED", "qed-dev.jsonlines"):
        a = r["original_nq_answers"][0][0]["string"] if r["original_nq_answers"] else None
        yield r["question_text"], untok(cut(r["title_text"] + ". " + r["paragraph_text"], a)), 1


@dataset("boolq", "CC BY-SA 3.0 (BoolQ)")
def _(rng):
    for part in "train", "dev":
        for r in load_json("cmnfriend/O-LoRA", f"CL_Benchmark/BoolQA/BoolQA/{part}.json"):
            m = re.match(r"question: (.*?)\npassage: (.*)", r["sentence"], re.S)
            if m:
                yield m.group(1), cut(m.group(2)), 1
    for r in load_jsonl("zhxieml/internal-consistency", "data/boolq.jsonl"):
        if r.get("passage"):
            yield r["question"], cut(r["passage"]), 1


@dataset("quotesum", "CC BY-SA 4.0 (QuoteSum, Wikipedia passages)")
def _(rng):
    for r in load_jsonl("google-research-datasets/QuoteSum", "v1/dev.jsonl"):
        for i in range(1, 9):
            if r.get(f"source{i}"):
                yield r["question"], cut(r[f"title{i}"] + ". " + r[f"source{i}"]), 1


def hotpot_form(rows, rng, negatives=1):
    """Supporting paragraphs as positives, distractors of the same question as label 0."""
    for r in rows:
        gold = {f[0] for f in r["supporting_facts"]}
        ctx = r["context"]
        if isinstance(ctx, dict):
            ctx = list(zip(ctx["title"], ctx["sentences"]))
        paras = {t: cut(squash(f"{t}. " + " ".join(s) if isinstance(s, list) else f"{t}. {s}")) for t, s in ctx}
        for t in gold & set(paras):
            yield r["question"], paras[t], 1
        rest = sorted(set(paras) - gold)
        for t in rng.sample(rest, min(len(rest), negatives)):
            yield r["question"], paras[t], 0


@dataset("hotpotqa", "CC BY-SA 4.0 (HotpotQA)")
def _(rng):
    for repo, path in [("JianGuanTHU/AMOR", "data/hotpotqa/test.json"), ("JianGuanTHU/AMOR", "data/hotpotqa/dev.json"),
                       ("AdelWang/MIGRES", "data/hotpot.json"), ("yhshu/HippoRAG", "data/hotpotqa_train.json")]:
        rows = json_any(repo, path)
        yield from hotpot_form([r for r in rows if r.get("supporting_facts") and r.get("context")], rng)


@dataset("2wikimultihopqa", "Apache-2.0 (2WikiMultihopQA)")
def _(rng):
    for path in "data/wikihop_train_preprocess.json", "data/wikihop.json":
        rows = json_any("AdelWang/MIGRES", path)
        yield from hotpot_form([r for r in rows if r.get("supporting_facts") and r.get("context")], rng)


@dataset("musique", "CC BY 4.0 (MuSiQue)")
def _(rng):
    for repo, path in [("AdelWang/MIGRES", "data/musique.json"), ("yhshu/HippoRAG", "data/musique_train.json")]:
        for r in json_any(repo, path):
            rest = []
            for p in r["paragraphs"]:
                t = cut(f"{p['title']}. {squash(p['paragraph_text'])}")
                if p["is_supporting"]:
                    yield r["question"], t, 1
                else:
                    rest.append(t)
            for t in rng.sample(rest, min(2, len(rest))):
                yield r["question"], t, 0


def linked_passages(repo_path, rng):
    repo, path = repo_path
    rows = [r for r in load_json(repo, path) if any(n[3] == "passage" for n in r["answer-node"])]
    want = {r["table_id"] for r in rows}
    pages = {}
    for p, body in many("wenhuchen/OTT-QA", r"\.json$", "data/traindev_request_tok"):
        name = os.path.basename(p)[:-5]
        if name in want:
            pages[name] = json.loads(body)
    for r in rows:
        nodes = [n for n in r["answer-node"] if n[3] == "passage"]
        if len(nodes) == 1 and r["table_id"] in pages:      # several nodes: not sure which one is meant
            passages = pages[r["table_id"]]
            gold = passages.get(nodes[0][2])
            if gold:
                yield untok(r["question"]), cut(untok(gold), r["answer-text"]), 1
                rest = sorted(k for k in passages if k != nodes[0][2] and r["answer-text"] not in passages[k])
                if rest:
                    yield untok(r["question"]), cut(untok(passages[rng.choice(rest)])), 0


@dataset("ott-qa", "MIT (OTT-QA); passages Wikipedia CC BY-SA")
def _(rng):
    yield from linked_passages(("wenhuchen/OTT-QA", "released_data/dev.traced.json"), rng)


@dataset("hybridqa", "MIT (HybridQA); passages Wikipedia CC BY-SA")
def _(rng):
    yield from linked_passages(("wenhuchen/HybridQA", "released_data/dev.traced.json"), rng)


@dataset("wikitablequestions", "CC BY-SA 4.0 (WikiTableQuestions)")
def _(rng):
    repo = "ppasupat/WikiTableQuestions"
    title = {p[5:-5]: json.loads(b)["title"] for p, b in many(repo, r"page/\d+-page/\d+\.json$", "page/")}
    table = {p: b for p, b in many(repo, r"csv/\d+-csv/\d+\.csv$", "csv/")}
    rows = load_csv(repo, "data/training.tsv", "\t", csv.QUOTE_NONE)
    for r in rng.sample(rows, 6000):
        if r["context"] not in table:
            continue
        cells = [" | ".join(squash(c) for c in row)
                 for row in csv.reader(io.StringIO(table[r["context"]]), escapechar="\\")]
        key = r["context"][4:-4].replace("-csv", "-page")
        t = "\n".join([title.get(key, "")] + cells)
        if len(t) > MAX_TEXT:
            t = t[:MAX_TEXT].rsplit("\n", 1)[0]
        if r["targetValue"].split("|")[0].lower() in t.lower() or r["targetValue"].isdigit():
            yield r["utterance"], t, 1


@dataset("dbpedia", "CC BY-SA 3.0 (DBpedia abstracts, title -> abstract)")
def _(rng):
    rows = load_json("cmnfriend/O-LoRA", "CL_Benchmark/TC/dbpedia/dev.json")
    for r in rng.sample(rows, 5000):
        m = re.match(r"Title: (.*?)\nText: (.*)", r["sentence"], re.S)
        if m:
            name = squash(m.group(1))
            kind = r["label"].lower()
            q = rng.choice([name, f"what is {name}", f"{name} {kind}", f"information about {name}"])
            yield q, cut(squash(m.group(2))), 1


# ---------------------------------------------------------------- claims, entailment, paraphrases
@dataset("fever", "CC BY-SA 3.0 (FEVER: claim -> evidence sentences, for and against)")
def _(rng):
    for part in "validation", "test":
        for r in load_jsonl("athnlp/athnlp-labs", f"data/fever/{part}.jsonl"):
            ev = squash(untok(" ".join(dict.fromkeys(r["evidence"]))))
            if r["label"] in ("SUPPORTS", "REFUTES") and ev:
                yield r["claim"], cut(ev), 1


@dataset("fever-symmetric", "CC BY-SA 3.0 data (DATA_LICENSE), code MIT")
def _(rng):
    for part in "dev", "test":
        for r in load_jsonl("TalSchuster/FeverSymmetric", f"symmetric_v0.2/fever_symmetric_{part}.jsonl"):
            yield r["claim"], cut(untok(r.get("evidence") or r.get("evidence_sentence"))), 1


@dataset("snli", "CC BY-SA 4.0 (SNLI; entailment 1, contradiction 0)")
def _(rng):
    for r in load_jsonl("anthonywchen/generative-nli", "data/snli/dev.jsonl"):
        if r["label"] in ("entailment", "contradiction"):
            yield r["hypothesis"], r["premise"], int(r["label"] == "entailment")


@dataset("mnli", "OANC / CC BY / CC BY-SA (MultiNLI; entailment pairs only)")
def _(rng):
    for r in load_jsonl("anthonywchen/generative-nli", "data/mnli/dev.jsonl"):
        if r["label"] == "entailment":
            yield squash(r["hypothesis"]), squash(r["premise"]), 1


@dataset("wikisplit", "CC BY-SA 4.0 (WikiSplit: sentence -> the same in two sentences)")
def _(rng):
    for part in "tune", "validation":
        for line in text_of("google-research-datasets/wiki-split", f"{part}.tsv").splitlines():
            f = line.split("\t")
            if len(f) == 2:
                a, b = untok(f[0]), untok(f[1].replace("<::::>", ""))
                yield (a, b, 1) if rng.random() < .5 else (b, a, 1)


@dataset("perspectrum", "CC BY-SA 4.0 (Perspectrum, data/dataset/license.txt)")
def _(rng):
    repo = "CogComp/perspectrum"
    pool = {p["pId"]: p["text"] for p in load_json(repo, "data/dataset/perspective_pool_v1.0.json")}
    for c in load_json(repo, "data/dataset/perspectrum_with_answers_v1.0.json"):
        for cl in c["perspectives"]:
            texts = [pool[p] for p in cl["pids"] if p in pool]
            if texts:
                yield c["text"], texts[0], 1
            for t in texts[1:3]:
                yield texts[0], t, 1


def same_intent(by_intent, rng, count, negatives=True, domain=None):
    """Two utterances of one intent (1) and, as label 0, one of another intent (of the same domain)."""
    flat = [(i, u) for i, us in sorted(by_intent.items()) for u in us]
    for i, u in rng.sample(flat, min(count, len(flat))):
        other = rng.choice([x for x in by_intent[i] if x != u] or [u])
        if other != u:
            yield u, other, 1
        if negatives:
            near = [j for j in by_intent if j != i and (not domain or domain.get(j) == domain.get(i))]
            yield u, rng.choice(by_intent[rng.choice(near)]), 0


@dataset("banking77", "CC BY 4.0 (PolyAI banking77; same intent 1, another intent 0)")
def _(rng):
    by = defaultdict(list)
    for r in load_csv("PolyAI-LDN/task-specific-datasets", "banking_data/train.csv"):
        by[r["category"]].append(squash(r["text"]))
    yield from same_intent(by, rng, 4000)


@dataset("clinc150", "CC BY 3.0 (clinc oos-eval; same intent 1, another intent of the domain 0)")
def _(rng):
    by = defaultdict(list)
    for u, i in load_json("clinc/oos-eval", "data/data_full.json")["train"]:
        by[i].append(u)
    dom = {i: d for d, l in load_json("clinc/oos-eval", "data/domains.json").items() for i in l}
    yield from same_intent({k: v for k, v in by.items() if k != "oos"}, rng, 4000, domain=dom)


@dataset("advising", "CC BY 4.0 (advising, text2sql-data: questions with the same SQL)")
def _(rng):
    for q in load_json("jkkummerfeld/text2sql-data", "data/advising.json"):
        sents = q["sentences"]
        if len(sents) < 2:
            continue
        for _ in range(min(20, len(sents))):
            a, b = rng.sample(sents, 2)
            vs = dict(b["variables"], **a["variables"])

            def fill(s):
                for k, v in sorted(vs.items(), key=lambda kv: -len(kv[0])):
                    s = s.replace(k, v)
                return untok(s)
            yield fill(a["text"]), fill(b["text"]), 1


@dataset("spider", "CC BY-SA 4.0 (Spider: questions with the same SQL; question -> SQL)")
def _(rng):
    by = defaultdict(list)
    for r in load_json("taoyds/spider", "evaluation_examples/examples/dev.json"):
        by[r["query"]].append(squash(r["question"]))
    for sql, qs in by.items():
        for a, b in zip(qs, qs[1:]):
            yield a, b, 1
        yield qs[0], sql, 1


# ---------------------------------------------------------------- reading comprehension, other texts
T0 = "data/finetuning/t0_train_50k/data_per_template/"
T0_FORMS = [   # (set, template, regular expression with groups q and p)
    ("adversarialqa", "adversarial_qa_d%s_based_on", r"Question: (?P<q>.*?)\nContext: (?P<p>.*)"),
    ("quoref", "quoref_Answer_Test", r"for the question: (?P<q>.*?) \?\n\n(?P<p>.*)"),
    ("quartz", "quartz_paragraph_question_plain_concat", r"(?P<p>.*?)\n(?P<q>.*)"),
]


def t0(name):
    for _, template, rx in (f for f in T0_FORMS if f[0] == name):
        for v in (["bert", "bidaf", "roberta"] if "%s" in template else [None]):
            path = T0 + (template % v if v else template) + ".jsonl"
            for r in load_jsonl("yizhongw/self-instruct", path):
                m = re.search(rx, r["prompt"], re.S)
                if m:
                    a = squash(r["completion"].replace("<|endoftext|>", ""))
                    yield squash(m.group("q")), cut(squash(m.group("p")), a), 1


@dataset("adversarialqa", "CC BY-SA 4.0 (AdversarialQA; copy in self-instruct, Apache-2.0)")
def _(rng):
    yield from t0("adversarialqa")


@dataset("quartz", "CC BY 4.0 (QuaRTz; copy in self-instruct)")
def _(rng):
    yield from t0("quartz")


@dataset("quoref", "CC BY 4.0 (Quoref; copies in self-instruct and SAPT)")
def _(rng):
    yield from t0("quoref")
    for part in "train", "dev", "test":
        path = f"CL_Benchmark/SuperNI/task002_quoref_answer_generation/{part}.json"
        for r in load_json("circle-hit/SAPT", path)["Instances"]:
            m = re.match(r"(?:Passage: )?(.*?)\s*Question: (.*)", r["input"], re.S)
            if m:
                a = r["output"][0] if isinstance(r["output"], list) else r["output"]
                for q in re.split(r"(?<=\?)\s+(?=[A-Z])", squash(m.group(2)))[:1]:
                    yield q, cut(squash(m.group(1)), a), 1


@dataset("qasc", "CC BY 4.0 (QASC: question -> facts; copy in self-instruct)")
def _(rng):
    for r in load_jsonl("yizhongw/self-instruct", T0 + "qasc_qa_with_combined_facts_1.jsonl"):
        m = re.search(r"If (?P<p>.*?), then (?P<q>.*?\?)", r["prompt"], re.S)
        if m:
            yield squash(m.group("q")), squash(m.group("p")), 1


@dataset("paws-wiki", "free, Google (PAWS-Wiki: 'may be freely used for any purpose'; copy in self-instruct)")
def _(rng):
    for r in load_jsonl("yizhongw/self-instruct", T0 + "paws_labeled_final_Rewrite.jsonl"):
        m = re.search(r"Sentence 1: (.*?)\nSentence 2: (.*?)\nQuestion", r["prompt"], re.S)
        if m:
            yield untok(m.group(1)), untok(m.group(2)), int("Yes" in r["completion"])


@dataset("narrativeqa", "Apache-2.0 (NarrativeQA; summaries Wikipedia CC BY-SA)")
def _(rng):
    for part in "valid", "test":
        for r in load_json("EmptyCityJK/flan-response-evaluator", f"data/narriative/{part}.json"):
            c = squash(r["context"])
            for q in r["qas"]:
                a = q["answer"].rstrip(". ")
                if len(c) <= MAX_TEXT or a in c:
                    yield squash(q["question"]), cut(c, a), 1


@dataset("ropes", "CC BY 4.0 (ROPES: question -> situation and background)")
def _(rng):
    rows = []
    for part in "train", "dev":
        for art in load_json("chen-steven/BERT-ROPES", f"data/ropes/{part}-v1.0.json")["data"]:
            for p in art["paragraphs"]:
                t = squash(p["situation"]) + "\n" + squash(p["background"])
                rows += [(squash(q["question"]), cut(t), 1) for q in p["qas"]]
    yield from rng.sample(rows, min(4000, len(rows)))


@dataset("tat-qa", "CC BY 4.0 (TAT-QA: question -> report paragraph)")
def _(rng):
    for path in "dataset_raw/tatqa_dataset_dev.json", "dataset_raw/tatqa_dataset_test_gold.json":
        for d in load_json("NExTplusplus/TAT-QA", path):
            para = {str(p["order"]): p["text"] for p in d["paragraphs"]}
            for q in d["questions"]:
                text = " ".join(para[o] for o in q.get("rel_paragraphs") or [] if o in para)
                if text and q["answer_from"] == "text":
                    a = q["answer"][0] if isinstance(q["answer"], list) and q["answer"] else None
                    yield q["question"], cut(text, a if isinstance(a, str) else None), 1


@dataset("integreat-qa", "CC BY 4.0 (integreat-qa / OMoS-QA, English)")
def _(rng):
    for part in "train", "dev", "test":
        for r in load_jsonl("digitalfabrik/integreat-qa-dataset", f"dataset/languages/en/splits/{part}_en.jsonl"):
            ls = r["context"].split("\n")
            if r["answers"]:
                lo, hi = min(r["answers"]), max(r["answers"])
                yield r["question"], cut("\n".join(ls[max(0, lo - 2):hi + 3]), ls[lo]), 1
            else:
                yield r["question"], cut(r["context"]), 0


@dataset("cos-e", "BSD-3 (CoS-E 1.0); questions CommonsenseQA, MIT: question -> explanation")
def _(rng):
    qs, rows = {}, []
    for part in "train", "dev":
        for r in load_jsonl("salesforce/cos-e", f"data/v1.0/{part}_rand_split.jsonl"):
            ans = {c["label"]: c["text"] for c in r["question"]["choices"]}.get(r.get("answerKey"), "")
            qs[r["id"]] = (r["question"]["stem"], ans)
    for part in "train", "dev":
        for r in load_jsonl("salesforce/cos-e", f"data/v1.0/cose_{part}_v1.0.jsonl"):
            e = squash(r["explanation"]["open-ended"])
            q, ans = qs.get(r["id"], ("", ""))
            stem = {w[:4] for w in re.findall(r"[a-z]{4,}", (q + " " + ans).lower())}
            if q and len(e.split()) >= 6 and sum(w[:4] in stem for w in re.findall(r"[a-z]{4,}", e.lower())) >= 2:
                rows.append((q, e, 1))
    yield from rng.sample(rows, 3000)


# ---------------------------------------------------------------- instructions and answers
@dataset("dolly", "CC BY-SA 3.0 (databricks-dolly-15k)")
def _(rng):
    path = "dolly_decode_bak/google_flan-t5-small_decode_output.jsonl"
    for r in load_jsonl("nayohan/dolly-15k-analysis", path):
        yield squash(r["instruction"]), cut(squash(r["text"])), 1
    for r in load_json("sail-sg/sdft", "data/dolly/dolly_train.json"):
        yield squash(r["instruction"]), cut(r["input"] or r["output"], r["output"] if r["input"] else None), 1


@dataset("oasst", "Apache-2.0 (OpenAssistant, sample trees in LAION-AI/Open-Assistant)")
def _(rng):
    def walk(m):
        for r in m.get("replies", []):
            if m["role"] == "prompter" and r["role"] != "prompter":
                yield squash(m["text"]), cut(r["text"]), 1
            yield from walk(r)
    for t in load_jsonl("LAION-AI/Open-Assistant", "model/model_eval/manual/data/en_100_tree.jsonl"):
        yield from (x for x in walk(t["prompt"]) if len(x[0].split()) >= 6 and len(x[1].split()) >= 12)


@dataset("gsm8k", "MIT (GSM8K: problem -> worked solution)")
def _(rng):
    rows = load_jsonl("openai/grade-school-math", "grade_school_math/data/train.jsonl")
    for r in rng.sample(rows, 2500):
        yield squash(r["question"]), re.sub(r"<<.*?>>|\n?#### .*", "", r["answer"]), 1


@dataset("humaneval", "MIT (HumanEval: description -> code)")
def _(rng):
    for r in load_jsonl("openai/human-eval", "data/HumanEval.jsonl.gz"):
        docs = re.findall(r'(?s)("""|\'\'\')(.*?)\1', r["prompt"])
        if docs:
            d = squash(re.split(r">>>|[Ee]xample|For example", docs[-1][1])[0])
            line = re.findall(r"(?m)^def .*", r["prompt"])[-1]
            yield d, f"{line}\n{r['canonical_solution']}"[:MAX_TEXT], 1


@dataset("opentriviaqa", "CC BY-SA 4.0 (OpenTriviaQA: question -> answer)")
def _(rng):
    rows = []
    for _, body in many("uberspot/OpenTriviaQA", r"^categories/"):
        for b in re.split(r"\n(?=#Q )", body):
            m = re.match(r"#Q (.*?)\n\^ (.*?)\n", b + "\n", re.S)
            if m and len(m.group(2).split()) >= 3 and "?" in m.group(1):
                rows.append((squash(m.group(1)), squash(m.group(2)), 1))
    yield from rng.sample(rows, min(3000, len(rows)))


@dataset("truthfulqa", "Apache-2.0 (TruthfulQA: true answers 1, false ones 0)")
def _(rng):
    for r in load_csv("jonny-vr/LLMCBench", "data/TruthfulQA/TruthfulQA.csv"):
        for a in r["Correct Answers"].split(";")[:2]:
            yield r["Question"], squash(a), 1


# ---------------------------------------------------------------- product search, customer service
@dataset("esci", "Apache-2.0 (Amazon Shopping Queries; exact 1, irrelevant and complement 0)")
def _(rng):
    for r in load_csv("malusamayo/underspec-analysis", "data/esci.csv"):
        if r["esci_label"] in ("Exact", "E", "Irrelevant", "I", "Complement", "C"):
            t = squash(strip_html(f"{r['product_title']}. {r['product_bullet_point'] or r['product_description']}"))
            yield r["query"], cut(t), int(r["esci_label"][0] == "E")


@dataset("dstc9-faq", "Apache-2.0 (DSTC9 track 1 knowledge: FAQ title -> body)")
def _(rng):
    know = load_json("alexa/alexa-with-dstc9-track1-dataset", "data_eval/knowledge.json")
    rows = []
    for domain in know.values():
        for e in domain.values():
            docs = list(e["docs"].values())
            name = (e["name"] or "").title()

            def ask(d):                     # many titles do not name the place
                return d["title"] if name.lower() in d["title"].lower() or not name else f"{name}: {d['title']}"
            for d in docs:
                rows.append((ask(d), d["body"], 1))
            if len(docs) > 2:               # another question about the same place
                a, b = rng.sample(docs, 2)
                if a["body"] != b["body"] and a["title"] != b["title"]:
                    rows.append((ask(a), b["body"], 0))
    yield from rng.sample(rows, 5000)


@dataset("dstc11-reviews", "CDLA-Sharing 1.0 (DSTC11 track 5: last user turn -> FAQ or review sentence)")
def _(rng):
    repo = "alexa/dstc11-track5"
    know = load_json(repo, "data/knowledge.json")
    for log, lab in zip(load_json(repo, "data/val/logs.json"), load_json(repo, "data/val/labels.json")):
        if not lab["target"]:
            continue
        for k in rng.sample(lab["knowledge"], min(2, len(lab["knowledge"]))):
            e = know[k["domain"]][str(k["entity_id"])]
            if k["doc_type"] == "faq":
                f = e["faqs"][str(k["doc_id"])]
                t = f"{f['question']} {f['answer']}"
            else:
                t = e["reviews"][str(k["doc_id"])]["sentences"][str(k["sent_id"])]
            name, said = (e["name"] or "").title(), squash(log[-1]["text"])
            if name and name.lower() not in said.lower():
                said = f"{name}: {said}"
            yield said, (f"{name}: {t}" if name and rng.random() < .5 else t), 1


# ---------------------------------------------------------------- Stack Exchange dumps
SE = [  # (repository, path) of small site dumps, CC BY-SA
    ("Yoav-Shafir/Elasticsearch-Coffee-Search-Engine-JS", "Posts.xml"),             # coffee
    ("kevswanberg/beer_tentrr", "Posts.xml"), ("AaronNie/QApairs-on-Stack-Overflow", "data/Posts.xml"),     # beer
    ("jrfoster/spark-intro", "Posts.xml"),                                          # mathematics educators
    ("Jean-Low/StackERedes", "data/Posts.xml"),                                     # quantum computing
    ("sasiddiqui/confucius", "data/stackexchange/ai.stackexchange.com/Posts.xml"),  # artificial intelligence
    ("amf2015/FinalProject", "stackoverflow/Posts.xml"),                            # bioinformatics
    ("danielzeliazkow/yameo", "src/test/resources/Posts.xml"),                      # augur
    ("mattly/ssdug-graphql", "data/Posts.xml"), ("A-Bag/xml-to-postgres", "src/test/resources/Posts.xml"),  # conlang
    ("abuchireddygari/Spark_ML", "data/ai.stackexchange.com/Posts.xml"),            # artificial intelligence, later
    ("yu51a5/BigQueryApachePipeline", "Posts.xml"),                                 # generative AI
    ("pan4/big-data", "src/main/resources/Posts.xml"),                              # Stack Overflow, first posts
]
SE_META = [  # sites about a site: how to ask, close, tag
    ("ArleneDcosta/StackExchangePatternandPrediction", "Posts.xml"), ("GonzaloHirsch/TP-XML", "Posts.xml"),
    ("woodstock-dev/code-challenge-10-18-2023", "data/Posts.xml"), ("spreusche/Tp-especial-XML", "Posts.xml"),
    ("krh66/TopicModelingApplication-semanticWeb", "Data/Posts.xml"),
    ("stevenrskelton/scala-2.10-blog-examples", "data/Posts.xml"), ("arianeborges/sentiment-analysis-with-python", "Posts.xml"),
]


def stack_exchange(repo, path):
    """Title -> body, title -> the two best answers."""
    posts = []
    for row in re.findall(r"<row ([^>]*?)/?>", text_of(repo, path)):
        posts.append({k: html.unescape(v) for k, v in re.findall(r'(\w+)="([^"]*)"', row)})
    titles, answers = {}, defaultdict(list)
    for p in posts:
        if p.get("Title") and p.get("PostTypeId", "1") == "1" and int(p.get("Score") or 0) >= -1:
            titles[p.get("Id")] = squash(p["Title"])
            yield squash(p["Title"]), cut(strip_html(p.get("Body", ""))), 1
    for p in posts:
        if p.get("PostTypeId") == "2" and p.get("ParentId") in titles and int(p.get("Score") or 0) >= 0:
            answers[p["ParentId"]].append(p)
    for q, al in answers.items():
        for p in sorted(al, key=lambda p: -int(p.get("Score") or 0))[:2]:
            yield titles[q], cut(strip_html(p.get("Body", ""))), 1


@dataset("stackexchange", "CC BY-SA 3.0/4.0 (Stack Exchange site dumps: title -> body, title -> answer)")
def _(rng):
    for repo, path in SE:
        yield from stack_exchange(repo, path)
    for r in load_csv("RafaelRon/Stack-Exchange", "Posts.csv"):        # movies, questions only
        if r.get("Title"):
            yield squash(r["Title"]), cut(strip_html(r["Body"])), 1


@dataset("stackexchange-meta", "CC BY-SA 3.0/4.0 (Stack Exchange meta sites)")
def _(rng):
    rows = [x for repo, path in SE_META for x in stack_exchange(repo, path)]
    yield from rng.sample(rows, min(3000, len(rows)))


# ---------------------------------------------------------------- help pages, articles, books
def pages(repo, pattern, prefix="", titles=("title",), leads=("summary", "description", "deck"), min_words=25):
    """Title -> first section, lead -> a later section, 'title: heading' -> that section, of markdown pages."""
    for path, body in many(repo, pattern, prefix):
        meta, body = front_matter(body)
        title = next((meta[k] for k in titles if meta.get(k)), "")
        secs = [(h, t) for h, t in sections(body) if len(t.split()) >= min_words]
        if not title:
            title = next((h for h, _ in sections(body) if h), "")
        if not title or not secs:
            continue
        title = squash(re.sub(r"\s*([|(]\s*(Microsoft|PowerShell)|: Exchange 20\d\d Help).*$", "", markdown(title)))
        yield title, cut(secs[0][1]), 1
        lead = squash(markdown(next((meta[k] for k in leads if meta.get(k)), "")))
        if len(lead.split()) >= 6 and len(secs) > 1 and lead[:60] not in secs[1][1]:
            yield lead, cut(secs[1][1]), 1
        for h, t in secs[1:4]:
            h = re.sub(r"^(\d+[.)]|Step \d+:?)\s*", "", h)
            if len(h.split()) >= 2:
                own = set(re.findall(r"[a-z]{4,}", h.lower())) & set(re.findall(r"[a-z]{4,}", title.lower()))
                yield (h if own and len(h.split()) >= 4 else f"{title}: {h}"), cut(t), 1


@dataset("digitalgov", "public domain / CC0 (digital.gov articles and guides, LICENSE.md)")
def _(rng):
    yield from pages("GSA/digitalgov.gov", r"\.md$", "content/news")
    yield from pages("GSA/digitalgov.gov", r"\.md$", "content/guides")
    yield from pages("GSA/digitalgov.gov", r"\.md$", "content/resources")


@dataset("18f", "public domain / CC0 (18F handbook and blog, LICENSE.md)")
def _(rng):
    yield from pages("18F/handbook", r"^pages/.*\.md$")
    yield from pages("18F/18f.gsa.gov", r"\.md$")


@dataset("us-gov-sites", "public domain / CC0 (cloud.gov documentation, U.S. Web Design System site)")
def _(rng):
    yield from pages("cloud-gov/cg-site", r"^(_docs|_kbarticles|_pages)/.*\.md$")
    yield from pages("uswds/uswds-site", r"^(_components|_patterns|_posts|pages)/.*\.md$")


@dataset("privacyguides", "CC BY-SA 4.0 (Privacy Guides articles, LICENSE)")
def _(rng):
    yield from pages("privacyguides/privacyguides.org", r"^(docs|blog/posts)/.*\.md$")


@dataset("login-gov-help", "public domain / CC0 (Login.gov help pages, LICENSE.md)")
def _(rng):
    yield from pages("GSA-TTS/identity-site", r"_en\.md$", "content/", min_words=12)


@dataset("microsoft-docs", "CC BY 4.0 (MicrosoftDocs SharePoint, Exchange, PowerShell conceptual pages)")
def _(rng):
    rows = []
    for repo, rx in [("MicrosoftDocs/OfficeDocs-SharePoint", r"\.md$"), ("MicrosoftDocs/OfficeDocs-Exchange", r"^Exchange/Exchange(Online|Hybrid)/.*\.md$"),
                     ("MicrosoftDocs/PowerShell-Docs", r"^reference/docs-conceptual/.*\.md$")]:
        rows += list(pages(repo, rx))
    yield from rng.sample(rows, min(7000, len(rows)))


def questions_in_bold(text):
    for q, a in re.findall(r"(?ms)^\*\*(.+?\?)[^*\n]*\*\*\s*\n(.*?)(?=^\*\*.+?\*\*\s*$|^## |^<br/>|\Z)", text):
        yield squash(re.sub(r"[^\x00-\x7f]+$", "", q)), cut(markdown(a)), 1


@dataset("ds-interviews", "CC BY 4.0 (alexeygrigorev/data-science-interviews)")
def _(rng):
    for p in "theory.md", "technical.md", "contrib/probability.md":
        yield from questions_in_bold(text_of("alexeygrigorev/data-science-interviews", p))


@dataset("sysadmin-skills", "MIT (trimstray/test-your-sysadmin-skills)")
def _(rng):
    t = text_of("trimstray/test-your-sysadmin-skills", "README.md")
    for q, a in re.findall(r"(?s)<summary><b>(.*?)</b></summary><br>(.*?)</details>", t):
        a = re.split(r"Useful resources", a)[0]
        if "To be completed" not in a:
            yield squash(markdown(q)).replace("*", "").strip(), cut(markdown(a)), 1


@dataset("react-interviews", "MIT (sudheerj/reactjs-interview-questions)")
def _(rng):
    t = text_of("sudheerj/reactjs-interview-questions", "README.md")
    for q, a in re.findall(r"(?ms)^\s*\d+\.\s+### (.*?)\n(.*?)(?=^\s*\d+\.\s+### |^## |\Z)", t):
        a = a.split("**[⬆")[0]
        yield squash(markdown(q)), cut(markdown(a)), 1


@dataset("recipes", "public domain / Unlicense (based.cooking, public-domain-recipes)")
def _(rng):
    for repo in "ronaldl29/public-domain-recipes", "LukeSmithxyz/based.cooking":
        for path, body in many(repo, r"^content/[a-z].*\.md$"):
            meta, body = front_matter(body)
            if meta.get("title"):
                t = cut(markdown(re.sub(r"(?m)^#+ ", "", body)))
                name = squash(meta["title"])
                yield rng.choice([f"how to make {name.lower()}", f"{name} recipe", name, f"recipe for {name.lower()}"]), t, 1


@dataset("exercism", "MIT (exercism/problem-specifications: summary -> description)")
def _(rng):
    blurb = {os.path.dirname(p): b for p, b in many("exercism/problem-specifications", r"metadata\.toml$")}
    for p, b in many("exercism/problem-specifications", r"/(description|instructions)\.md$"):
        m = re.search(r'blurb = "(.*)"', blurb.get(os.path.dirname(p), ""))
        if m:
            yield m.group(1), cut(markdown(re.sub(r"(?m)^#+ .*$", "", b))), 1


OPENSTAX = ["introduction-business", "principles-economics-bundle", "college-success-bundle", "physics",
            "introduction-anthropology", "introduction-intellectual-property", "life-liberty-and-pursuit-happiness"]


@dataset("openstax", "CC BY 4.0 (OpenStax textbooks: section heading / glossary entry -> paragraphs)")
def _(rng):
    rows = []
    for book in OPENSTAX:
        repo = f"openstax/osbooks-{book}"
        if "NonCommercial" in text_of(repo, "LICENSE", log=False)[:400]:
            continue
        for path, x in many(repo, r"\.cnxml$"):
            gloss = re.findall(r"(?s)<definition[^>]*>\s*<term[^>]*>(.*?)</term>\s*<meaning[^>]*>(.*?)</meaning>", x)
            x = re.sub(r"(?s)<glossary.*?</glossary>|<exercise.*?</exercise>|<(figure|note|table|equation|list)\b.*?</\1>", " ", x)
            title = squash(strip_html(re.search(r"(?s)<title>(.*?)</title>", x).group(1))) if "<title>" in x else ""
            plain = []
            for sec in re.split(r"<section\b[^>]*>", x):
                m = re.match(r"(?s)\s*<title>(.*?)</title>", sec)
                paras = [squash(strip_html(p)) for p in re.findall(r"(?s)<para\b[^>]*?(?<!/)>(.*?)</para>", sec)]
                paras = [p for p in paras if len(p.split()) >= 25]
                plain += paras
                head = squash(strip_html(m.group(1))) if m else ""
                if head and paras and not re.match(r"(?i)summary|key |review|references|further|short answer|critical|section quiz", head):
                    q = head if len(head.split()) >= 4 or not title else f"{head} ({title})"
                    rows.append((q, cut(" ".join(paras)), 1))
            for term, meaning in gloss:         # definition -> a paragraph that uses the term
                term, meaning = squash(strip_html(term)), squash(strip_html(meaning))
                hit = [p for p in plain if term.lower() in p.lower()]
                if hit:
                    rows.append((rng.choice([f"what is {term}", f"{term} definition", f"{term}: {meaning}", meaning]), cut(hit[0]), 1))
    yield from rng.sample(rows, min(10000, len(rows)))


# ---------------------------------------------------------------- writing
def make(number, name):
    licence, f = SETS[name]
    USED.clear()
    rng, seen, rows = random.Random(f"b44-{name}"), set(), []
    for q, t, label in f(rng):
        q, t = squash(q), lines_of(t)
        key = (q.lower(), t.lower())
        words = len(q.split())
        if not (2 <= words <= MAX_QUERY_WORDS or (words == 1 and len(q) > 3)) or len(t) < 10 or key in seen or q.lower() == t.lower():
            continue
        if sum(c.isascii() for c in t) < .8 * len(t):
            continue
        seen.add(key)
        rows.append({"query": q, "text": t[:MAX_TEXT], "label": label, "source": name})
    if len(rows) > MAX_PAIRS:
        rows = rng.sample(rows, MAX_PAIRS)
    with gzip.open(os.path.join(OUT, f"qa-{number:02d}.jsonl.gz"), "wt", encoding="utf-8") as out:
        for r in rows:
            out.write(json.dumps(r, ensure_ascii=False) + "\n")
    by_repo = defaultdict(list)
    for repo, path in USED:
        by_repo[repo].append(path)
    tsv = [f"{name}\t{repo}\t{'; '.join(dict.fromkeys(paths))}\t{licence}" for repo, paths in by_repo.items()]
    with open(os.path.join(OUT, f".qa-{number:02d}.tsv"), "w") as out:
        out.write("\n".join(tsv) + "\n")
    print(f"{number:02d} {name}: {len(rows)} pairs, {sum(not r['label'] for r in rows)} of them label 0", flush=True)


def main():
    names = list(SETS)
    for n in sys.argv[1:] or names:
        try:
            make(names.index(n), n)
        except Exception as e:              # one broken source must not stop the rest
            print(f"{n}: FAILED {type(e).__name__}: {e}", flush=True)
    with open(os.path.join(OUT, "qa.tsv"), "w") as out:
        out.write("set\trepository@commit\tpath\tlicence\n")
        for p in sorted(glob.glob(os.path.join(OUT, ".qa-*.tsv"))):
            out.write(open(p).read())


if __name__ == "__main__":
    main()
