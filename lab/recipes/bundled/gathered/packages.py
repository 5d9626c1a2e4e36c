#!/usr/bin/env python3
"""Natural (query, text) pairs from the documentation that Debian packages carry.

Each package of packages.names is fetched with `apt-get download`, read as a
stream (nothing is unpacked or installed) and deleted.  Written beside this file:
  packages-NN.jsonl.gz   {"query", "text", "source"}; source = package name
  packages.tsv           package, version, licence, group, pairs
A package that packages.tsv names already is not read again, so a stopped run goes on.

Left out on purpose (held-out test domains): control fields, /usr/share/man and
manual pages rendered as HTML, the Python standard library's documentation, WordNet.

Run: python3 packages.py [--until HH:MM] [--again PACKAGE ...]     (needs lxml; times are UTC)
"""
import collections, datetime, gzip, hashlib, html, json, os, random, re
import subprocess, sys, tarfile, time, bz2, zlib
from lxml import etree, html as lhtml

HERE = os.path.dirname(os.path.abspath(__file__))
DEBS = os.path.join(os.path.dirname(HERE), "debs")
# group: most pairs taken of one package, and whether first sentences become queries
GROUPS = {"desktop": (8000, False), "manual": (4000, False), "api": (2500, True),
          "python": (3000, True), "perl": (4000, False), "dict": (8000, False)}
MOST = {"dict-vera": 3000, "dict-gcide": 15000}                          # two-line entries: enough of them
# where the copyright file is another package's, or names no licence in a line of its own
LICENCES = {"gimp-help-en": "GFDL-NIV-1.2+", "libstdc++-12-doc": "GFDL-1.3 (manual); GPL-3+", "cmake-doc": "BSD-3-Clause",
            "imagemagick-6-doc": "ImageMagick", "debian-faq": "GNU-manual style (copies and changes under the same terms)"}
TOO_BIG = 36e6                                      # a .deb larger than this is skipped
BIG_ANYWAY = {"gnucash-docs", "gimp-help-en", "linux-doc-6.1", "kstars-data", "python-sklearn-doc"}
SECONDS = 25                                        # reading time of one package
BATCH = 12                                          # packages fetched at a time

GENERIC = set("""overview introduction description summary usage options option examples example
notes note details see also synopsis name parameters returns return value arguments about general
background basics features feature installation install installing requirements configuration
configure settings credits license licence copyright authors author contents index references
getting started quick start quickstart tutorial more information further reading methods method
properties functions function attributes classes class constants bugs history changes changelog
remarks preface foreword conclusion other miscellaneous misc advanced appendix tips faq help
purpose status todo limitations caveats warning warnings diagnostics public protected private
members member detailed related files file tools main window commands command reference the and of
for this to a an in support known issues how it works using
menu menus dialog dialogs toolbar toolbars bar play playing game rules strategy view edit go items item basic window
page tab buttons button""".split())
SKIPHEAD = re.compile(r"(?i)^(copying|licen[cs]e.*|copyright.*|authors?|author and copyright|see also|"
                      r"acknowledge?ments?|credits.*|index|(short )?table of contents|documents this page refers to|contents|references|"
                      r"bibliography|navigation|changelog|changes|related topics|source code|this page|"
                      r"indices and tables|search|examples?|complexity|release history|report a bug|gnu (free )?documentation licen[cs]e|"
                      r"support|bugs|maintainers?|contributors)$")
STOP = set("the a an of to in is are and or for that this it with on be by as you can if not from "
           "which at will when your has have was use".split())


FOREIGN = set("que de la le les des du et est der die das und ist nicht den zu mit ein eine para uma um os em por el los "
              "las una con il che di per het een van och att som som en del pour dans sur è é não je na se jest w z".split())


def foreign(t):
    """Whether a text is in another language, or hardly in letters of ours."""
    w = re.findall(r"[^\W\d_]+", t.lower())
    alien = sum(ord(c) > 0x24f and c.isalpha() for c in t)
    return alien > 0.1 * len(t) or len(t) > 99 and sum(x in FOREIGN for x in w) > 0.09 * len(w)


def h32(s):
    return int.from_bytes(hashlib.blake2b(s.encode("utf8", "replace"), digest_size=4).digest(), "big")


def norm(s):
    return re.sub(r"\s+", " ", s.replace("\u00ad", "").replace("\u200b", "")).strip()


def english(t):
    w = re.findall(r"[A-Za-z']+", t.lower())
    if len(w) < 12 or sum(map(len, w)) < 0.6 * len(t.replace(" ", "")):
        return False
    return sum(x in STOP for x in w) >= 0.16 * len(w)


def cut(t, most):
    """t cut at the end of a sentence to at most that many characters."""
    if len(t) <= most:
        return t
    ends = [m.end() for m in re.finditer(r"[.!?][\"')]*(?= )", t[:most + 1])]
    ends = [e for e in ends if e >= 100]
    return t[:ends[-1]] if ends else t[:most].rsplit(" ", 1)[0]


def first_sentence(t):
    m = re.match(r"(.{15,220}?[.!?])\s+(?=[A-Z(\"'`])", t)
    if m and not re.search(r"\b(e\.g|i\.e|etc|vs|cf|Mr|Dr|No)\.$", m.group(1)):
        return m.group(1), t[m.end():]
    return None, t


def head(s):
    s = norm(s).replace("¶", "").replace("[src]", "").replace("\uf0c1", "").strip(" #:.§-—*")
    s = re.sub(r"(?i)^(chapter|appendix|part|section)\s+([\dA-Z]{1,4}|[IVX]+)[.:]?\s+(?=\S)", "", s)
    s = re.sub(r"^([A-Z]?\d+(\.\d+)*(-\d+)?|[A-Z](\.\d+)+)[.)]?\s+(?=[^\W\d]|[“‘])", "", s)
    return s.strip(" #:.,§-—*<>=/")


APIHEAD = re.compile(r"(?i)(parameters?|returns?|member (type|function|variable|data)s? documentation|(method|field|constructor|enum constant|"
                     r"element|property|nested class|class) (details?|summary)|implicit information|public functions|"
                     r"return value|type parameters?|throws|back to top|how it works):?$")


def better(query, text):
    """The query with its repetitions taken out, or None where the pair is poor."""
    q = norm(re.sub(r"\s*>\s*→", " →", query))
    q = re.sub(r"^(\d+(\.\d+)*(-\d+)?\.?\s+)(?=[^\W\d]|[“\"'‘])", "", q)
    q = re.sub(r"\b(\w+) (?:Class|QML Type|Reference|module) \1\b", r"\1", q)
    q = re.sub(r"\b([\w:.]+)( \1\b)+", r"\1", q)
    if APIHEAD.search(q) or re.match(r"(def|val|public|static|virtual|void|const|protected|private|abstract|final|"
                                     r"class|typedef|struct|enum|type|int) |[$%@&\\{<(-]", q):
        return None
    if len(re.findall(r"\w+(?:['’.:_-]+\w+)*", q)) < 2 or len(q.split()) < 2 or len(re.findall(r"[(){}\[\]=;|<>$]", q)) > 4:
        return None
    if len(re.findall(r"[{};=<>|$\\]|::|->|\b\w+_\w+\b", text)) > 0.025 * len(text):
        return None
    if foreign(text) or foreign(query):
        return None
    if re.search(r"WITHOUT (ANY )?WARRANTY|General Public License|Free Documentation License|All rights reserved|"
                 r"document has been moved|^Implicit information|^Available Languages", text):
        return None
    return q


class Pairs:
    """The pairs of one package, with the filters that every pair passes."""

    def __init__(self, source, group):
        self.source, self.rows, self.seen = source, [], set()
        self.nq, self.nt = collections.Counter(), collections.Counter()
        self.most, self.firsts = GROUPS[group]
        self.most = MOST.get(source, self.most)
        self.end = time.time() + SECONDS

    def full(self):
        return len(self.rows) >= self.most or time.time() > self.end

    def add(self, query, text, least=100, loose=False):
        query, text = norm(query), norm(text)
        text = re.sub(r"\s+([,.;:])(?=\s|$)", r"\1", text)
        query = better(query, text)
        if not query:
            return
        if not loose:
            text = cut(text, (1500, 1500, 900, 500)[h32(query + text[:50]) % 4])
        n = len(re.findall(r"\w+(?:['’.:_-]+\w+)*", query))
        if not 2 <= n <= 30 or len(query) > 240 or not least <= len(text) <= 1500:
            return
        if query.lower() in text.lower()[:len(query) + 3] and len(text) < len(query) + 80:
            return
        if not loose and not english(text):
            return
        if len(re.findall(r"[A-Za-z]", query)) < 0.6 * len(query.replace(" ", "")):
            return
        ql, tl = query.lower(), text[:200].lower()
        if (ql, tl) in self.seen or self.nq[ql] >= 2 or self.nt[tl] >= 3:
            return
        self.seen.add((ql, tl)); self.nq[ql] += 1; self.nt[tl] += 1
        self.rows.append({"query": query, "text": text, "source": self.source})

    def section(self, title, heading, text):
        """heading -> text, the page's title before a short or generic heading."""
        title, heading = head(title), head(heading)
        if self.firsts:
            if re.match(r"(?i)(parameters?|returns?|return values?|exceptions?|throws|members|flags|types and "
                        r"values|(method|field|constructor|enum constant) (details|summary)|object hierarchy|"
                        r"functions|properties|signals|notes)$", heading):
                return
            m = re.match(r"[^(]*?([\w:~.]+)\s*\(.*[,)]", heading)
            if m and re.search(r"::|&|\*|_|[a-z][A-Z]", heading):   # a signature: its name alone
                heading = m.group(1).strip(":").replace("::", " ")
        if SKIPHEAD.match(heading) or SKIPHEAD.match(title):
            return
        words = re.findall(r"[^\W_]+", heading.lower())
        if not words:
            return
        general = all(w in GENERIC or w.isdigit() for w in words)
        if (general or len(words) < 3) and title.lower() != heading.lower():
            if not title or all(w in GENERIC for w in re.findall(r"[^\W_]+", title.lower())):
                return
            query = heading if heading.lower().startswith(title.lower()) else title + " " + heading
        else:
            if general:
                return
            query = heading
        self.add(query, text)
        if self.firsts:
            self.opening(heading, text)

    def opening(self, name, text):
        """The first sentence of a description -> the name and the rest."""
        s, rest = first_sentence(norm(text))
        if s and re.search(r"[{}=;#|]|::|\b(public|static|virtual|const|void|default) |^[a-z]|"
                           r"^(This|It|These|Here|However|In general|For example|Note|See|Also|If so)\b", s):
            return
        if s and len(s.split()) >= 5 and len(rest) >= 120:
            short = name.split("(")[0].strip()
            if short and len(short) < 60 and h32(s) % 2:
                rest = short + ": " + rest
            self.add(s.rstrip("."), rest)


# ---------------------------------------------------------------- HTML
BLOCK = set("""p li dd dt td th pre div section article main body table ul ol dl blockquote h1 h2 h3 h4
h5 h6 figure tr tbody thead form center fieldset details summary header footer nav aside hr
address""".split())
DROP = set("""script style nav footer head noscript svg math button select form iframe object
textarea template audio video canvas""".split())
BADCLASS = re.compile(r"(?i)(^|[\s_-])(nav|navi|navbar|navheader|navfooter|sidebar|sphinxsidebar|related|footer|"
                      r"toc|breadcrumbs?|menu|header|headerlink|linenos|member-signature|type-signature|searchbox|topicindex|memproto|"
                      r"highlight-\w+|summarytable|memitem:\w+|inheritance|contents|localtoc|"
                      r"t-navbar.*|editsection|mw-editsection|viewcode-link|toctree-wrapper|ltc|dirlist)($|\s)")


def local(e):
    return e.tag.lower() if isinstance(e.tag, str) else ""


def text_of(e):
    out = []

    def walk(x):
        t = local(x)
        if not t or t in DROP or "headerlink" in (x.get("class") or ""):
            pass
        else:
            if t in BLOCK or t == "br":
                out.append(" ")
            out.append(x.text or "")
            for c in x:
                walk(c)
                out.append(c.tail or "")
            if t in BLOCK:
                out.append(" ")
    walk(e)
    return norm("".join(out))


def tokens(body):
    """(kind, level or name, text): headings, paragraphs, terms with their definition."""
    out = []

    def para(s):
        s = norm(s)
        if len(s) > 2:
            out.append(("p", 0, s))

    def walk(e, depth):
        if depth > 60:
            return
        t = local(e)
        if not t or t in DROP:
            return
        if BADCLASS.search((e.get("class") or "")) or e.get("role") in ("navigation", "search") or \
                BADCLASS.search(e.get("id") or ""):
            return
        if re.fullmatch("h[1-6]", t):
            s = text_of(e)
            if s:
                out.append(("h", int(t[1]), s))
            return
        if t == "pre":
            s = e.text_content() if hasattr(e, "text_content") else ""
            if s.count("\n") <= 3 and len(s) < 240:
                para(s)
            return
        if t == "dl":
            terms = []
            for c in e:
                k = local(c)
                if k == "dt":
                    terms.append(c)
                elif k == "dd":
                    dd = text_of_dd(c)
                    if terms:
                        out.append(("d", term(terms[0]), dd))
                    terms = []
                    for d in c.iter("dl"):           # nested definitions, of a class say
                        walk(d, depth + 1)
                        break
                elif k == "div":
                    walk(c, depth + 1)
            return
        if t == "table":
            rows = list(e.iter("tr"))
            if len(rows) > 40:
                return
            for r in rows:
                cells = [text_of(c) for c in r if local(c) in ("td", "th")]
                cells = [c for c in cells if c]
                if len(cells) == 1 and len(cells[0]) > 60:
                    walk_children(r, depth + 1)
                elif 2 <= len(cells) <= 3 and sum(map(len, cells)) < 600:
                    para(": ".join(cells))
            return
        if t in ("p", "li", "dd", "dt", "td", "blockquote", "div", "span", "section", "article") and \
                not any(local(x) in BLOCK for x in e.iterdescendants()):
            para(text_of(e))
            return
        walk_children(e, depth + 1)

    def walk_children(e, depth):
        if e.text and e.text.strip():
            para(e.text)
        run = []
        for c in e:
            if local(c) in BLOCK or any(local(x) in BLOCK for x in c.iterdescendants()):
                if run:
                    para("".join(run)); run = []
                walk(c, depth)
            elif local(c) and local(c) not in DROP and not BADCLASS.search(c.get("class") or ""):
                run.append(text_of(c) if local(c) != "br" else " ")
            if c.tail:
                run.append(" " + c.tail if c.tail[:1].isspace() else c.tail)
        if run:
            para("".join(run))

    def term(dt):
        name = ""
        for x in dt.iter("span"):
            if x.get("class") == "classifier":
                for y in x.iter():
                    y.text = ""
                    if y is not x:
                        y.tail = ""
        for x in dt.iter():
            if "descname" in (x.get("class") or "") or local(x) == "h3":
                name = text_of(x)
                break
        if name:
            pre = [text_of(x) for x in dt.iter() if "descclassname" in (x.get("class") or "")]
            return "".join(pre) + name
        return re.sub(r"\s*\[source\].*$", "", text_of(dt))

    def text_of_dd(dd):
        parts = [dd.text or ""]
        for c in dd:
            if local(c) in ("p", "ul", "ol", "span", "a", "code", "em", "b", "i", "strong", "tt", "div", "section"):
                if not BADCLASS.search(c.get("class") or "") and not (local(c) == "div" and c.find(".//dl") is not None):
                    parts.append(" " + text_of(c))
            parts.append(c.tail or "")
        return norm("".join(parts))

    sys.setrecursionlimit(5000)
    walk(body, 0)
    return out


def sections(title, toks, pairs):
    """Pairs of a stream of tokens; a short section takes in the sections under it."""
    secs = []
    for kind, a, s in toks:
        if kind == "h":
            secs.append([a, s, []])
        elif kind == "p":
            if not secs:
                secs.append([1, title, []])
            secs[-1][2].append(s)
        else:
            s1 = s
            owner = secs[-1][1] if secs else title
            if a and len(s1) >= 100:
                name = re.split(r"[(=]", a)[0].strip() if pairs.firsts else a
                if pairs.firsts and len(name.split()) <= 2 and name:
                    pairs.opening(name, s1)
                    pairs.add(name if len(re.findall(r"[A-Za-z0-9]+", name)) > 1 and "." in name
                              else (clean_title(owner) + " " + name), s1)
                elif name.endswith("?") or len(name.split()) >= 3:
                    pairs.add(head(name), s1)
                else:
                    pairs.section(owner, name, s1)
            if secs and len(s1) < 400:
                secs[-1][2].append((a + ": " if a and len(a) < 80 else "") + s1)
    for i, (lv, hd, body) in enumerate(secs):
        text = " ".join(body)
        j = i + 1
        while len(text) < 240 and j < len(secs) and secs[j][0] > lv:
            text = norm(text + " " + head(secs[j][1]) + ". " + " ".join(secs[j][2]))
            j += 1
        pairs.section(title, hd, text)


def clean_title(t):
    t = norm(t)
    t = re.sub(r"\s*- cppreference\.com$|\s*\[src\]$|"
               r"\s*\(([^()]|\([^()]*\))*(API|\d\.\d)([^()]|\([^()]*\))*\)$", "", t)
    t = re.sub(r"^GAP \(\w+\) - (Chapter \w+: )?", "", t)
    t = re.sub(r"^([^:]+): .{0,40}Reference Manual$", r"\1", t)
    for sep in (" — ", " | ", " – ", " :: "):
        t = t.split(sep)[0]
    t = re.sub(r"\s+(v?\d+(\.\d+)+\S*)?\s*(documentation|manual)$", "", t)
    return head(re.sub(r"\(Java SE.*\)$", "", t))


def read_html(data, pairs, path):
    if len(data) > 3_000_000:
        return
    m = re.search(rb"charset=[\"']?([\w-]+)", data[:1500])
    try:
        s = data.decode(m.group(1).decode() if m else "utf-8")
    except (UnicodeDecodeError, LookupError):
        s = data.decode("utf-8" if not m else "latin-1", "replace")
    s = re.sub(r"^\s*<\?xml[^>]*\?>", "", s)
    if re.search(r'class="ref(entry|synopsisdiv)"', s) and "gtk" not in path and "glib" not in path:
        return                                     # a manual page as HTML
    try:
        doc = lhtml.document_fromstring(s)
    except Exception:
        return
    heads = {norm(x.text_content()).upper() for x in doc.iter("h1", "h2", "h3")}
    if {"NAME", "SYNOPSIS"} <= heads:
        return
    t = doc.find(".//title")
    title = clean_title(t.text_content()) if t is not None else ""
    for q in ("//main", "//*[@role='main']", "//article", "//*[@id='DisplayArea']",
              "//*[@id='mw-content-text']", "//div[contains(@class,'mainContent')]", "//*[@id='content']"):
        got = doc.xpath(q)
        if len(got) == 1:
            body = got[0]
            body.attrib.pop("class", None); body.attrib.pop("id", None); body.attrib.pop("role", None)
            break
    else:
        body = doc.find("body")
        if body is None:
            return
    toks = tokens(body)
    h1 = [x for x in toks if x[0] == "h"]
    if h1 and (len(title) < 3 or len(title) > 90):
        title = head(h1[0][2])
    sections(title, toks, pairs)


# ---------------------------------------------------------------- Mallard and DocBook
XBLOCK = set("""p para simpara item listitem note tip warning caution important steps list terms title
section sect1 sect2 sect3 sect4 chapter variablelist varlistentry itemizedlist orderedlist row entry td tr
step answer question""".split())
XDROP = set("""screenshot media mediaobject screen programlisting code-block indexterm comment
info sectioninfo chapterinfo articleinfo bookinfo figure remark example informaltable""".split())
SECT = set("""section sect1 sect2 sect3 sect4 sect5 chapter appendix preface article refsect1
refsect2 simplesect topic""".split())


def xtag(e):
    return etree.QName(e).localname.lower() if isinstance(e.tag, str) else ""


def xtext(e, sub=False):
    """Text of an element; nested sections only when asked for."""
    out = []

    def walk(x, top):
        t = xtag(x)
        if not t or t in XDROP or (t in ("title", "titleabbrev", "subtitle", "links", "desc") and not top and
                                   xtag(x.getparent()) in SECT | {"page"}):
            return
        if not sub and not top and t in SECT:
            return
        if t == "shortcut":
            return
        glue = {"keycombo": "+", "keyseq": "+", "menuchoice": " → ", "guiseq": " → "}.get(t)
        out.append(x.text or "")
        for i, c in enumerate(x):
            if xtag(c) in XBLOCK:
                out.append(" ")
            if glue and i and not (i == 1 and xtag(x[0]) == "shortcut"):
                out.append(glue)
            walk(c, False)
            if xtag(c) in XBLOCK:
                if out and out[-1].strip()[-1:].isalnum() and xtag(c) in ("term", "title"):
                    out.append(":")
                out.append(" ")
            out.append(c.tail or "")
    walk(e, True)
    return norm("".join(out))


def child(e, *names):
    for c in e:
        if xtag(c) in names:
            return c
    return None


def entities(s):
    """Named entities that no DTD is there to resolve become words."""
    decl = dict(re.findall(r'<!ENTITY\s+([\w.-]+)\s+"([^"<>]*)"', s))
    known = {"amp", "lt", "gt", "quot", "apos"}
    up = {"kde": "KDE", "gnome": "GNOME", "lmb": "left mouse button", "rmb": "right mouse button", "gui": "GUI",
          "mmb": "middle mouse button", "ctrl": "Ctrl", "ie": "i.e.", "eg": "e.g.", "etc": "etc.", "url": "URL",
          "app": "the application", "appname": "the application", "kappname": "the application", "nbsp": " "}

    def one(m):
        n = m.group(1)
        if n in known:
            return m.group(0)
        if n in decl and "&" not in decl[n]:
            return html.escape(decl[n], quote=False)
        if n in ("eg", "ie", "etc"):
            return up[n]
        if html.unescape("&" + n + ";") != "&" + n + ";":
            return html.escape(html.unescape("&" + n + ";"), quote=False)
        return up.get(n.lower(), n.replace("-", " ").replace("_", " ") if n.isupper() else n.capitalize())
    return re.sub(r"&([A-Za-z][\w.-]*);", one, s)


def read_xml(data, pairs, path):
    s = entities(data.decode("utf-8", "replace"))
    s = re.sub(r"^\s*<\?xml[^>]*\?>", "", s)
    s = re.sub(r"<!DOCTYPE[^\[>]*(\[.*?\]\s*)?>", "", s, count=1, flags=re.S)
    try:
        root = etree.fromstring(s.encode(), etree.XMLParser(recover=True, huge_tree=True, resolve_entities=False,
                                                            no_network=True, remove_comments=True))
    except Exception:
        return
    if root is None:
        return
    if xtag(root) == "page":                        # Mallard
        t, info = child(root, "title"), child(root, "info")
        title = xtext(t) if t is not None else ""
        text = xtext(root)
        if len(text) < 240:
            text = xtext(root, sub=True)
        pairs.section(path_title(path), title, text)
        desc = child(info, "desc") if info is not None else None
        if desc is not None:
            pairs.add(xtext(desc).rstrip("."), text)
    else:                                           # DocBook
        t = root.find(".//{*}bookinfo/{*}title") if root.find(".//{*}bookinfo/{*}title") is not None else child(root, "title")
        title = xtext(t) if t is not None else path_title(path)
        title = re.sub(r"(?i)^the\s+|\s+(handbook|manual|user('s)? guide)$", "", title)
    for e in root.iter():
        k = xtag(e)
        if k in SECT and e is not root or k == "article" or k in SECT and xtag(root) != "page":
            t = child(e, "title")
            if t is None:
                continue
            text = xtext(e)
            if len(text) < 240:
                text = xtext(e, sub=True)
            pairs.section(title, xtext(t), text)
        elif k == "qandaentry":
            q, a = child(e, "question"), child(e, "answer")
            if q is not None and a is not None:
                pairs.add(xtext(q), " ".join(xtext(x) for x in e if xtag(x) == "answer"))
        elif k == "varlistentry":
            t, a = child(e, "term"), child(e, "listitem")
            if t is not None and a is not None and len(xtext(a)) >= 120:
                pairs.section(title, xtext(t), xtext(a))


def path_title(path):
    m = re.search(r"/help/C/([\w-]+)/", path) or re.search(r"/HTML/en/(?:.*/)?([\w-]+)/[^/]*$", path)
    return m.group(1).replace("-", " ") if m else ""


# ---------------------------------------------------------------- POD
def pod_plain(s):
    s = re.sub(r"E<lt>", "\x01", s); s = re.sub(r"E<gt>", "\x02", s)
    s = re.sub(r'L<([\w:]+)/"?([^"<>|]*)"?>', r'"\2" in \1', s)
    for _ in range(5):
        s = re.sub(r"L<<+\s+(.*?)\s+>>+|L<([^<>]*)>",
                   lambda m: (m.group(1) or m.group(2) or "").split("|")[0].strip("/\""), s)
        s = re.sub(r"[XZ]<[^<>]*>", "", s)
        s = re.sub(r"[A-Z]<<+\s+(.*?)\s+>>+", lambda m: m.group(1).replace("<", "\x01").replace(">", "\x02"), s, flags=re.S)
        s = re.sub(r"[BICFSE]<([^<>]*)>", r"\1", s)
    return s.replace("\x01", "<").replace("\x02", ">")


def read_pod(data, pairs, path):
    s = data.decode("utf-8", "replace").replace("\r", "")
    if "\n=head1" not in "\n" + s:
        return
    module, toks, on, enc = "", [], False, ""
    for block in re.split(r"\n[ \t]*\n", s):
        b = block.strip("\n")
        if re.match(r"=cut", b):
            on = False
            continue
        m = re.match(r"=(\w+)\s*(.*)", b, re.S)
        if m:
            on, cmd, arg = True, m.group(1), norm(pod_plain(m.group(2)))
            if cmd in ("begin", "for"):
                enc = "x" if cmd == "begin" else ""
            elif cmd == "end":
                enc = ""
            elif cmd.startswith("head"):
                toks.append(("h", int(cmd[4:] or 1) if cmd[4:].isdigit() else 1, arg))
            elif cmd == "item":
                toks.append(("i", 0, arg))
        elif on and not enc:
            if b[:1] in " \t":
                if b.count("\n") < 4:
                    toks.append(("p", 0, norm(b)))
            else:
                toks.append(("p", 0, norm(pod_plain(b))))
    m = re.search(r"(?m)^package\s+([\w:]+)", s)
    module = m.group(1) if m else ""
    secs = [["", 1, []]]
    for kind, lv, t in toks:
        if kind == "h":
            secs.append([t, lv, []])
        elif kind == "i":
            secs[-1][2].append(("i", t))
        else:
            secs[-1][2].append(("p", t))
    name = abstract = ""
    for hd, lv, body in secs:
        if hd.upper() == "NAME" and body:
            m = re.match(r"(\S+)\s+-+\s+(.*)", " ".join(t for _, t in body))
            if m:
                name, abstract = m.group(1), m.group(2)
    module = name or module
    faq = "perlfaq" in path or "FAQ" in path
    for hd, lv, body in secs:
        text = " ".join(t for k, t in body if k == "p" or not re.fullmatch(r"[*\d.o]*", t))
        if not hd or hd.upper() in ("NAME", "SYNOPSIS", "AUTHOR", "AUTHORS", "BUGS", "COPYRIGHT AND LICENSE",
                                    "EXPORT", "VERSION", "INHERITANCE"):
            continue
        if hd.upper() in ("DESCRIPTION", "OVERVIEW", "INTRODUCTION") and abstract:
            pairs.add(abstract.rstrip("."), text)
            pairs.add(module + " module" if len(abstract) % 2 else "what does " + module + " do", text)
            continue
        short = re.split(r"[(=]| ?->", hd)[0] if not faq else hd
        pairs.section(module, hd if len(hd.split()) > 2 or faq else (short or hd).capitalize()
                      if (short or hd).isupper() else (short or hd), text)
        if not faq:                                 # =item terms with their text
            item, par = None, []
            for k, t in body + [("i", "")]:
                if k == "i":
                    if item and len(" ".join(par)) >= 140:
                        pairs.section(module, re.split(r"[(=]", item)[0], " ".join(par))
                    item, par = t, []
                else:
                    par.append(t)


# ---------------------------------------------------------------- Info, dictionaries
def read_info(data, pairs, path):
    s = data.decode("utf-8", "replace")
    manual = re.sub(r"\.info.*|-\d+$", "", os.path.basename(path))
    for node in s.split("\x1f"):
        lines = node.split("\n")
        lines = [x for x in lines if not x.startswith("File: ")]
        title, par, got = None, [], []
        for i, x in enumerate(lines):
            nx = lines[i + 1] if i + 1 < len(lines) else ""
            if x.strip() and re.fullmatch(r"[*=.-]{3,}", nx.strip()) and abs(len(nx) - len(x)) <= 2:
                if title:
                    got.append((title, par))
                title, par = x.strip(), []
            elif re.fullmatch(r"[*=.-]{3,}", x.strip()) or x.startswith("* "):
                continue
            elif x.startswith("          "):
                continue
            else:
                par.append(x)
        if title:
            got.append((title, par))
        for t, par in got:
            text = norm(re.sub(r"\*[Nn]ote ([^:]*)::", r"\1", "\n".join(par)))
            text = re.sub(r"\*[Nn]ote ([^:]{1,60}): [^.]*\.", r"\1.", text)
            pairs.section(manual, re.sub(r"['‘’]", "", t), text)


def b64(s):
    n = 0
    for c in s:
        n = n * 64 + "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".index(c)
    return n


ASK = ["what is {}", "{} meaning", "define {}", "what does {} mean", "{} definition", "meaning of the word {}"]


def read_dict(index, data, pairs, name):
    data = zlib.decompressobj(31).decompress(data) if data[:2] == b"\x1f\x8b" else data
    rows = [r.split("\t") for r in index.decode("utf-8", "replace").splitlines()]
    rows = [r for r in rows if len(r) >= 3 and not r[0].startswith(("00", "*"))]
    random.Random(5).shuffle(rows)
    for r in rows:
        if pairs.full():
            break
        w = r[0] if h32(r[0]) % 3 or r[0].isupper() else r[0].lower()
        text = data[b64(r[1]):b64(r[1]) + b64(r[2])].decode("utf-8", "replace")
        ask = ASK[h32(w) % len(ASK)].format(w)
        if name == "dict-vera":
            m = re.match(r"\s*(\S+)\s+(.+)", norm(text))
            if m:
                pairs.add(("what does {} stand for", "{} acronym meaning", "{} abbreviation")[h32(w) % 3].format(m.group(1)),
                          m.group(1) + ": " + m.group(2), least=25, loose=True)
            continue
        if "wordnet" in text.lower():               # gcide took definitions from there: held out
            continue
        if name == "dict-gcide":                    # nested etymologies
            for _ in range(3):
                text = re.sub(r"\[[^\[\]]*\]", "", text)
            text = re.sub(r"\\[^\\\n]{1,40}\\", "", text)
            text = re.sub(r"\s*\([^()]{1,40}[\"`*?][^()]{0,40}\)", "", text[:200]) + text[200:]
            text = re.sub(r"\[[^\]]*\]|<[^>]*>", "", text)
            text = re.sub(r"\[\s*[\d.]*\s*[\w .,']*\s*\]?", "", text)
            ask = ASK[h32(w) % len(ASK)].format(w) if " " not in w else (w if h32(w) % 2 else ask)
        if name == "dict-jargon":
            text = re.sub(r"^\s*:?[^:\n]*:\s*/[^/]*/", lambda m: w + ": ", text)
        if name == "dict-foldoc":
            text = re.sub(r"(?m)^\s*\(\d{4}-\d\d-\d\d\)\s*$", "", text)
            text = re.sub(r"<[^>]*>", "", text).replace("{", "").replace("}", "")
        text = norm(text.replace("{", "").replace("}", ""))
        if name == "dict-gcide":                    # a word explained inside another's entry
            at = text.lower().find(w.lower())
            if at < 0:
                continue
            if at > 60:
                text = cut(text[at:at + 1500], 700)
        if len(text) > 1500:
            text = cut(text, 1500)
        pairs.add(ask, text, loose=len(text) > 140 and len(re.findall("[a-z]", text)) > 0.55 * len(text))


# ---------------------------------------------------------------- packages
LEAVE = re.compile(r"(?i)/man/|/man\d/|manpages?|man-pages|\.\d\.(html|txt)|changelog|/copyright|/_sources/|/_static/|"
                   r"/_modules/|genindex|py-modindex|modindex|/search\.html|/NEWS|/AUTHORS|/TODO|/licen[cs]e|"
                   r"/fdl|/gpl|allclasses|package-tree|overview-tree|index-all|class-use|deprecated-list|/history|/changes|/updates|/changelist|delta\.pod|/sf_|/man-|-(it|pt|de|ja|ru|fr|es)/|"
                   r"_source\.html|-source\.html|functions_|globals_|_8h|hierarchy|whatsnew|release_?notes|"
                   r"/CommandGuide/|/cli/|release-\d|/releases?/|relnotes|RelNotes|index-files|bookindex|/locale/|gfdl|legal")
LOCALE = re.compile(r"/share/help/(?!C/)[^/]+/|/doc/kde/HTML/(?!en/)|/doc/HTML/(?!en/)[^/]+/|/gnome/help/[^/]+/(?!C/)[a-z]{2}|"
                    r"\.(fr|de|es|ja|ko|tr|pt-br|zh-cn|da|ru|cs|pl|it|nl)(\.[\w-]+)?\.?(html|utf8)?$|"
                    r"/(ar|ca|cs|da|de|el|es|eu|fi|fr|gl|hu|it|ja|ko|lt|nb|nl|nn|pl|pt|pt[-_]BR|ro|ru|sk|sl|sv|tr|uk|vi|"
                    r"zh[-_](CN|TW))/|/(?!en)[a-z]{2}[-_][A-Z]{2}(\.UTF-8)?/|"
                    r"\.(pt-br|fr|de|ja|ru|es|it|ko|zh-cn|pl|nl|tr|sv)/")


def wanted(path, pkg):
    if LEAVE.search(path) or LOCALE.search(path):
        return None
    p = path[:-3] if path.endswith(".gz") else path
    if pkg.startswith("git-doc") and "/html/git" in p and "howto" not in p:
        return None
    if pkg.startswith("postgresql-doc") and re.search(r"/(app-|sql-|release)", p):
        return None
    # texts that are manual pages as well
    if pkg == "cmake-doc" and "/guide/" not in p or \
            pkg == "borgbackup-doc" and "/usage" in p:
        return None
    if p.endswith(".page") and "/help/C/" in p:
        return read_xml
    if (p.endswith(".docbook") or p.endswith(".docbook.bz2")) and "/en/" in p or \
            (p.endswith((".xml", ".docbook")) and "/help/C/" in p):
        return read_xml
    if p.endswith((".html", ".htm", ".xhtml", ".html.en")):
        return read_html
    if (p.endswith(".pod") or p.endswith(".pm") and "perl" in pkg) and "/bin/" not in p:
        return read_pod
    if "/share/info/" in p and re.search(r"\.info(-\d+)?$", p):
        return read_info
    if p.endswith((".dict.dz", ".dict", ".index")) and pkg.startswith("dict-"):
        return read_dict
    return None


def unpack(path, data):
    try:
        if path.endswith(".gz"):
            data = zlib.decompressobj(31).decompress(data)
        elif path.endswith(".bz2"):
            data = bz2.decompress(data)
    except Exception:
        return b""
    return data


def licence(text):
    names = []
    for m in re.finditer(r"(?m)^License:[ \t]*(.+)$", text):
        n = norm(m.group(1))
        if n not in names and len(n) < 60:
            names.append(n)
    if names:
        return "; ".join(names[:6])
    for word, n in (("Free Documentation License|GFDL", "GFDL"), ("Creative Commons.{0,40}Share.?Alike|CC-BY-SA", "CC-BY-SA"),
                    ("Lesser General|Library General", "LGPL"), ("GPL|General Public", "GPL"), ("Artistic", "Artistic"),
                    ("Apache", "Apache"), ("Mozilla", "MPL"), ("PostgreSQL|BSD|Redistribution and use", "BSD-like"),
                    ("Permission is hereby granted|MIT", "MIT-like"), ("(?i)public domain", "public domain")):
        if re.search(word, text, re.S):
            names.append(n)
    return "; ".join(names) or "see copyright file"


def read_package(pkg, group, deb):
    """(pairs, licence) of one .deb, read as a stream."""
    pairs = Pairs(pkg, group)
    pipe = subprocess.Popen(["dpkg", "--fsys-tarfile", deb], stdout=subprocess.PIPE)
    files, size, lic = [], 0, ""
    try:
        tar = tarfile.open(fileobj=pipe.stdout, mode="r|")
        for m in tar:
            path = m.name.lstrip(".")
            if not m.isfile():
                continue
            if re.fullmatch(r"/usr/share/doc/[^/]+/copyright", path):
                lic = licence(tar.extractfile(m).read().decode("utf-8", "replace"))
            elif m.size < 40_000_000 and (r := wanted(path, pkg)):
                data = tar.extractfile(m).read()
                size += len(data)
                files.append((path, r, data))
                if size > 900_000_000:
                    break
    finally:
        pipe.stdout.close()
        pipe.kill(); pipe.wait()
    random.Random(7).shuffle(files)
    files.sort(key=lambda f: "faq" not in f[0].lower())   # questions first
    pairs.end = time.time() + SECONDS
    index = {p[:-6]: d for p, r, d in files if p.endswith(".index")}
    for path, r, data in files:
        if pairs.full():
            break
        try:
            if r is read_dict:
                base = re.sub(r"\.dict(\.dz)?$", "", path)
                if not path.endswith(".index") and base in index:
                    read_dict(index[base], data, pairs, pkg)
            else:
                r(unpack(path, data), pairs, path)
        except (RecursionError, ValueError, KeyError, etree.Error) as e:
            print("  skipped", path, type(e).__name__, flush=True)
    random.Random(3).shuffle(pairs.rows)
    return pairs.rows[:pairs.most], lic, len(files)


def versions(names):
    out = subprocess.run(["apt-cache", "--no-all-versions", "show", *names], capture_output=True, text=True).stdout
    got, p = {}, None
    for line in out.splitlines():
        if line.startswith("Package: "):
            p = line[9:]
            got.setdefault(p, {})
        elif p and line.startswith(("Version: ", "Size: ")):
            k, v = line.split(": ", 1)
            got[p].setdefault(k, v)
    return got


def tidy():
    """The last pass over all parts: `better` again, and nothing said twice by two packages."""
    pairs, texts, rows, count = set(), collections.Counter(), 0, collections.Counter()
    for f in sorted(os.listdir(HERE)):
        if not re.fullmatch(r"packages-\d+\.jsonl\.gz", f):
            continue
        keep = []
        for line in gzip.open(os.path.join(HERE, f), "rt", encoding="utf8"):
            r = json.loads(line)
            r["query"] = better(r["query"], r["text"])
            if not r["query"]:
                continue
            key, start = h32(r["query"].lower() + r["text"][:100].lower()), h32(r["text"][:150].lower())
            if key in pairs or texts[start] >= 2:
                continue
            pairs.add(key); texts[start] += 1; count[r["source"]] += 1
            keep.append(json.dumps(r, ensure_ascii=False) + "\n")
        rows += len(keep)
        with gzip.open(os.path.join(HERE, f), "wt", encoding="utf8") as o:
            o.writelines(keep)
    tsv = os.path.join(HERE, "packages.tsv")
    lines = [l.rstrip("\n").split("\t") for l in open(tsv)]
    lines = lines[:1] + [l[:2] + [LICENCES.get(l[0], l[2]), l[3]] + [str(count[l[0]])] for l in lines[1:]]
    open(tsv, "w").writelines("\t".join(l) + "\n" for l in lines)
    print("tidied:", rows, "pairs")


def main():
    until = sys.argv[sys.argv.index("--until") + 1] if "--until" in sys.argv else "23:59"
    os.makedirs(DEBS, exist_ok=True)
    tsv = os.path.join(HERE, "packages.tsv")
    done = {l.split("\t")[0] for l in open(tsv)} if os.path.exists(tsv) else set()
    if not done:
        open(tsv, "w").write("package\tversion\tlicence\tgroup\tpairs\n")
    if "--again" in sys.argv:                       # forget these packages, then read them anew
        again = set(sys.argv[sys.argv.index("--again") + 1:])
        done -= again
        keep = [l for l in open(tsv) if l.split("\t")[0] not in again]
        open(tsv, "w").writelines(keep)
        for f in sorted(os.listdir(HERE)):
            if re.fullmatch(r"packages-\d+\.jsonl\.gz", f):
                rows = gzip.open(os.path.join(HERE, f), "rt", encoding="utf8").readlines()
                keep = [r for r in rows if json.loads(r)["source"] not in again]
                if len(keep) < len(rows):
                    with gzip.open(os.path.join(HERE, f), "wt", encoding="utf8") as o:
                        o.writelines(keep)
    todo, group, listed = [], None, set()
    for line in open(os.path.join(HERE, "packages.names")):
        for w in line.split("#")[0].split():
            if w.endswith(":"):
                group = w[:-1]
            elif w not in done and w not in listed:
                listed.add(w)
                todo.append((w, group))
    info = versions([p for p, _ in todo])
    todo = [(p, g) for p, g in todo if p in info and
            (float(info[p].get("Size", 9e9)) <= TOO_BIG or p in BIG_ANYWAY)]
    print(len(todo), "packages,", round(sum(float(info[p]["Size"]) for p, _ in todo) / 1e6), "MB", flush=True)
    batches = [todo[i:i + BATCH] for i in range(0, len(todo), BATCH)]

    def fetch(b):
        return subprocess.Popen(["apt-get", "-q", "download", *(p for p, _ in b)], cwd=DEBS,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    part = 0
    while os.path.exists(os.path.join(HERE, "packages-%02d.jsonl.gz" % part)):
        part += 1
    going = fetch(batches[0]) if batches else None
    total = 0
    for i, b in enumerate(batches):
        if datetime.datetime.utcnow().strftime("%H:%M") >= until:
            break
        going.wait()
        here = {f.split("_")[0]: f for f in os.listdir(DEBS) if f.endswith(".deb")}
        going = fetch(batches[i + 1]) if i + 1 < len(batches) else None
        rows, lines = [], []
        for p, g in b:
            deb = os.path.join(DEBS, here[p]) if p in here else None
            if not deb:
                print("  not fetched:", p, flush=True)
                continue
            t = time.time()
            try:
                got, lic, n = read_package(p, g, deb)
            except Exception as e:
                print("  failed:", p, repr(e), flush=True)
                got, lic, n = [], "", 0
            os.remove(deb)
            rows += got
            lines.append("\t".join([p, info[p].get("Version", ""), LICENCES.get(p) or lic or "see source package", g, str(len(got))]))
            print("%-34s %6d pairs %6d files %5.1fs" % (p, len(got), n, time.time() - t), flush=True)
        if rows:
            with gzip.open(os.path.join(HERE, "packages-%02d.jsonl.gz" % part), "wt", encoding="utf8") as f:
                for r in rows:
                    f.write(json.dumps(r, ensure_ascii=False) + "\n")
            part += 1
        with open(tsv, "a") as f:
            f.write("".join(x + "\n" for x in lines))
        total += len(rows)
        print("== batch", i, "of", len(batches), "total", total, flush=True)
    if going:
        going.terminate()
    tidy()


if __name__ == "__main__":
    main()
