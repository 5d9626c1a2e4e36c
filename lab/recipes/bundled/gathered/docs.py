#!/usr/bin/env python3
"""Make (query, text) pairs from the documentation in bare git mirrors.

  docs.py probe MIRRORS  < names     one "owner/repo [prefix [cap [commit]]]" a line -> rows of docs.tsv
  docs.py build MIRRORS docs.tsv OUT OUT/docs-NN.jsonl.gz, one part for each 10 repositories

MIRRORS holds owner+repo/repo (or owner+repo/repo/.git).  A row of docs.tsv: owner/repo, commit,
licence, path prefix, cap.  `probe` names the licence by the text of the licence file at that commit
and refuses (on stderr) what is NonCommercial, NoDerivatives, a GPL or unknown.
"""
import gzip, hashlib, html, json, os, re, subprocess, sys
import xml.etree.ElementTree as ET

CAP, PER_PAGE, PER_FAQ = 8000, 3, 40
LOW, HIGH = 120, 1500
EXT = ('.md', '.mdx', '.markdown', '.rst', '.adoc', '.asc', '.cnxml', '.page', '.md.erb', '.yml', '.yaml')
SKIP_PATH = re.compile(
    r'(^|/)(\.[^/]+|node_modules|vendor|third_party|tests?|fixtures|__tests__|templates?|archetypes|'
    r'_?includes?|changelogs?|release-?notes?|releases?|i18n|l10n|locales?|translations?|legal|'
    r'(zh|ja|jp|fr|es|de|pt|ru|ko|it|tr|pl|uk|vi|id|ar|fa|cs|nl|sv|hi|bn|th|el|he|hu|ro|uz|mr|ca|cn|tw|br)'
    r'([-_][A-Za-z]{2,4})?|zh[-_]\w+|chinese|japanese|korean|spanish|french|russian|portuguese|german)/'
    r'|(^|/)(change_?log|changes|contributing|code[_-]of[_-]conduct|licen[sc]e|security|authors|maintainers|'
    r'governance|history|news|toc|todo|pull_request_template|_?sidebar|summary|agents|claude)[^/]*$'
    r'|\.(zh|ja|fr|es|de|pt|ru|ko|it|tr|pl|cn)([-_]\w+)?\.\w+$|[-_](zh|ja|fr|es|de|pt|ru|ko|cn|zh[-_]\w+)\.\w+$', re.I)
DROP = re.compile(r"^(see also|next steps?|related\b.*|references?|further (reading|information)|contribut\w+|licen[sc]es?|"
                  r"resources|additional resources|table of contents|contents|external links|bibliography|credits?|"
                  r"acknowledge?ments?|authors?|change ?log|specifications?|browser compatibility|feedback|in this "
                  r"(article|section|chapter)|learn more|on this page|what'?s next\??|where to go (next|from here).*|"
                  r"this page|links?|knowledge check|assignment|version history|sources?|footnotes|metadata|"
                  r"common parameters|commonparameters|syntax|inputs?|outputs?|index|faqs?|frequently asked questions|"
                  r"return values?|image credits?|privacy notice)\.?:?$", re.I)
GENERIC = re.compile(r"^(overview|introduction|intro|examples?( \d+)?|parameters?|remarks|usage|description|summary|notes?|"
                     r"prerequisites?|requirements|background|about|details|install(ation|ing)?|setup|configuration|"
                     r"getting started|quick ?start|conclusion|basics|features|options|properties|methods|arguments|"
                     r"how it works|how to use( it)?|explanation|intent|applicability|limitations|troubleshooting|"
                     r"ingredients|directions|instructions|preparation|method|lesson overview|(step|part|chapter) \d+.*)\W*$", re.I)
STOP = re.compile(r'\b(the|of|to|and|is|in|a|you|for|that|with|are|it|on|this|be|can)\b', re.I)
QUESTION = re.compile(r'^(how|what|why|when|where|who|which|can|do|does|is|are|should|will|did|could|would|may)\b', re.I)


# ------------------------------------------------------------------ git
def gitdir(mirrors, repo):
    base = os.path.join(mirrors, repo.replace('/', '+'), 'repo')
    return os.path.join(base, '.git') if os.path.isdir(os.path.join(base, '.git')) else base


def git(gd, *args):
    return subprocess.run(['git', '--git-dir', gd, *args], capture_output=True).stdout


def files(gd, commit, prefix):
    """(path, text) of each documentation file under one of the comma-separated prefixes."""
    want = []
    for line in git(gd, '-c', 'core.quotePath=false', 'ls-tree', '-r', '-l', commit).decode('utf8', 'replace').splitlines():
        meta, path = line.split('\t', 1)
        mode, kind, oid, size = meta.split()
        low = path.lower()
        if kind != 'blob' or mode == '120000' or not low.endswith(EXT) or int(size) > 600_000:
            continue
        if not any(path.startswith(p) for p in prefix.split(',')):
            continue
        if SKIP_PATH.search(path) or (low.endswith(('.yml', '.yaml')) and 'faq' not in low):
            continue
        want.append((oid, path))
    if not want:
        return
    proc = subprocess.Popen(['git', '--git-dir', gd, 'cat-file', '--batch'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for oid, path in want:
        proc.stdin.write((oid + '\n').encode())
        proc.stdin.flush()
        head = proc.stdout.readline().split()
        if head[-1] == b'missing':
            continue
        body = proc.stdout.read(int(head[2]))
        proc.stdout.read(1)
        yield path, body.decode('utf8', 'replace').replace('\r\n', '\n').lstrip('\ufeff')
    proc.stdin.close()
    proc.wait()


def licence(gd, commit):
    """The licence by its text; the first of the file names that is known wins, a forbidden one ends it."""
    names = [n for n in git(gd, 'ls-tree', '--name-only', commit).decode('utf8', 'replace').splitlines()
             if re.match(r'(mit-)?(licen[sc]e|copying|unlicense)', n, re.I)]
    names.sort(key=lambda n: ('code' in n.lower(), len(n)))
    found = []
    for n in names + ['README.md']:
        t = re.sub(r'\s+', ' ', git(gd, 'show', f'{commit}:{n}').decode('utf8', 'replace'))
        readme = n == 'README.md'
        if readme and found:
            break
        if re.search(r'non-?commercial|no-?derivatives|\bby-nc|\bby-nd', t, re.I) and (
                readme or re.search(r'Attribution[- ]Non|NonCommercial (License|4|3)|\bby-n[cd]', t, re.I)):
            return 'refused: NC or ND'
        for name, pat in [('CC-BY-SA', r'Attribution-Share ?Alike \d|creativecommons.org/licenses/by-sa|CC[- ]BY[- ]SA'),
                          ('CC-BY', r'Attribution (4\.0|3\.0)|creativecommons.org/licenses/by/|CC[- ]BY[- ][34]'),
                          ('CC0-1.0', r'CC0 1\.0|CC0-1\.0|creativecommons.org/publicdomain/zero'),   # BY texts name CC0 too
                          ('Unlicense', r'free and unencumbered software released into the public domain'),
                          ('public domain', r'in the (worldwide )?public domain')] + ([] if readme else [
                          ('MPL-2.0', r'Mozilla Public License,? Version'),
                          ('GPL', r'GNU (AFFERO |LESSER )?GENERAL PUBLIC LICENSE'),
                          ('Apache-2.0', r'Apache License,? Version 2\.0|Apache License Version 2\.0|www\.apache\.org/licenses/'),
                          ('BSD', r'Redistribution and use in source and binary forms'),
                          ('ISC', r'Permission to use, copy, modify, and(/or)? distribute this'),
                          ('MIT', r'Permission is hereby granted, free of charge')]):
            if re.search(pat, t, re.I if name in ('GPL', 'public domain', 'CC-BY-SA') else 0):
                found.append(name)
                break
    good = [f for f in found if f != 'GPL']
    docs_first = [f for f in good if f.startswith('CC')] or good
    return docs_first[0] if docs_first else 'refused: ' + (found[0] if found else 'unknown')


# ------------------------------------------------------------------ cleaning
def inline(s):
    s = re.sub(r'\[!INCLUDE\s*\[[^\]]*\]\s*\([^)]*\)\s*\]|\{/\*.*?\*/\}', '', s, flags=re.I)
    s = re.sub(r'!\[[^\]]*\](\([^)]*\)|\[[^\]]*\])', '', s)
    s = re.sub(r'\[!\w+\]|\[!\w+ [^\]]*\]\([^)]*\)|\[!(div|INCLUDE|VIDEO)[^\]]*\]', '', s)
    s = re.sub(r'\[([^\[\]]*)\]\(([^()]|\([^()]*\))*\)(\{[^}]*\})?', r'\1', s)
    s = re.sub(r'\[([^\[\]]+)\]\[[^\]]*\]', r'\1', s)
    s = re.sub(r'\{\{<?\s*glossary_tooltip[^}]*?text="([^"]+)"[^}]*\}\}', r'\1', s)
    s = re.sub(r'\{\{\s*\w+\(\s*["\']([^"\']+)["\'][^}]*\)\s*\}\}', r'\1', s)
    s = re.sub(r'\{\{[<%].*?[>%]\}\}|\{%.*?%\}|\{\{.*?\}\}|\{[:#.][^}]*\}', '', s)
    s = re.sub(r':[a-z+:-]+:`~?!?([^`<]*?)\s*(<[^`>]*>)?`', r'\1', s)          # rst roles
    s = re.sub(r'`([^`<]+?)\s*<[^`>]+>`_{1,2}', r'\1', s)                        # rst links
    s = re.sub(r'<(https?|mailto)[^>]*>', '', s)
    s = re.sub(r'</?[a-zA-Z][^<>\n]*>', '', s)
    s = re.sub(r'(\*\*\*|\*\*|___|__)(?=\S)(.+?)(?<=\S)\1', r'\2', s)
    s = re.sub(r'(?<![\w*])[*_](?=[^\s*_])([^*_\n]+?)(?<=\S)[*_](?![\w*])', r'\1', s)
    s = s.replace('``', '`').replace('`', '')
    s = re.sub(r'\\([\\`*_{}\[\]()#+.!<>|~$&-])', r'\1', s)
    return re.sub(r'[ \t\xa0]+', ' ', html.unescape(s)).strip()


def adoc_inline(s):
    s = re.sub(r'(link:|xref:|https?:)[^\s\[\]]*\[([^\],]*)[^\]]*\]', r'\2', s)
    s = re.sub(r'<<[^,>]*,\s*([^>]*)>>', r'\1', s)
    s = re.sub(r'<<[^>]*>>|image:[^\[]*\[[^\]]*\]|\(\(\(.*?\)\)\)|\{(nbsp|empty)\}|footnote:\[[^\]]*\]', '', s)
    s = re.sub(r'\(\((.*?)\)\)', r'\1', s)
    return inline(re.sub(r'(?<!\w)\+([^+\n]+)\+(?!\w)', r'\1', s))


def finish(lines):
    """Lines (already plain) to paragraphs: unwrap prose, keep list items and code on their lines."""
    out, par = [], ''
    for ln in lines:
        bare = ln.strip()
        if not bare:
            if par:
                out.append(par)
            par = ''
        elif re.match(r'([-*+•]|\d+[.)])\s', bare) or ln.startswith('\x00'):
            if par:
                out.append(par)
            out.append(ln.replace('\x00', '') if ln.startswith('\x00') else bare)
            par = ''
        else:
            par = par + ' ' + bare if par else (out.pop() + ' ' + bare if out and not out[-1].endswith(('.', ':')) and
                                                 re.match(r'([-*+•]|\d+[.)])\s', out[-1]) else bare)
    if par:
        out.append(par)
    return '\n'.join(out).strip()


def cut(text, key):
    """At most 1,500 characters, often fewer (so that lengths vary), ending at a sentence or a line."""
    limit = (500, 800, 1100, HIGH)[int(hashlib.md5(key.encode()).hexdigest(), 16) % 4]
    if len(text) <= limit:
        return text
    head = text[:limit]
    ends = [m.end() for m in re.finditer(r'[.!?][)"”\']?(?=\s)|\n', head)]
    return head[:ends[-1]].strip() if ends and ends[-1] >= LOW else ''


BAD_TEXT = re.compile(r"[,.;:)\\?]|<\?|(By the end of this|After (reading|completing) th(is|e)|See the argument syntax|Use the following information|"
                      r"Read th(e|is)( following)?( clinical)? (scenario|in other)|In the following exercises|CVE ID|This example was created)", re.I)
BAD_QUERY = re.compile(r"(logs for the|overview and logs|weekly update|bitcoin core version|glossary: \w$|table of contents)|.*(release notes|"
                       r"security releases?|self.?check|makes perfect|key (concepts?|terms)|further research|more information|"
                       r"learning (objectives|outcomes)|collaborative group activities|chapter outline|\b(released|presenter))$", re.I)


def good_text(t):
    if not LOW <= len(t) <= HIGH or BAD_TEXT.match(t) or re.search(r'\{\{|\[!|:material-|\{#', t):
        return False
    words = t.split()
    alpha = sum(c.isalpha() or c.isspace() for c in t)
    ascii_ = sum(c < '\u0250' or '\u2000' <= c <= '\u2100' for c in t)
    return (alpha / len(t) > .72 and ascii_ / len(t) > .97 and len(words) >= 18
            and len(STOP.findall(t)) / len(words) > .12 and 'http' not in t[:30] and '{%' not in t and '](' not in t)


def good_query(q):
    n = len(q.split())
    return (not BAD_QUERY.match(q) and 2 <= n <= 30 and len(q) <= 220 and all(c < '\u0250' or '\u2000' <= c <= '\u2100' for c in q)
            and sum(c.isalpha() or c.isspace() for c in q) / len(q) > .7 and not re.search(r'[{}<>|]|https?:|\[|TODO', q))


# ------------------------------------------------------------------ formats: each gives (title, description, [(level, heading, lines)])
def front(s):
    m = re.match(r'---\s*\n(.*?)\n(---|\.\.\.)\s*\n', s, re.S) or re.match(r'\+\+\+\s*\n(.*?)\n(\+\+\+)\s*\n', s, re.S)
    if not m:
        return {}, s
    meta = {}
    for k, v in re.findall(r'^(\w[\w.-]*)\s*[:=][ \t]*(.*(?:\n[ \t]+\S.*)*)', m.group(1), re.M):
        v = re.sub(r'^[>|][-+]?\s*', '', v.strip())
        meta.setdefault(k.lower(), re.sub(r'\s+', ' ', v).strip('"\' '))
    return meta, s[m.end():]


def markdown(s, path):
    meta, s = front(s)
    s = re.sub(r'<!--.*?-->', '', s, flags=re.S)
    s = re.sub(r'\[!INCLUDE\s*\[[^\]]*\]\s*\([^)]*\)\s*\]', '', s, flags=re.I)
    s = re.sub(r'(?<!!)\[([^\[\]]{1,200}?)\]\((\S+?)(\s+"[^"]*")?\)', lambda m: m[1].replace('\n', ' '), s)   # links over two lines
    s = re.sub(r'<(script|style|svg|iframe|nav|table)\b.*?</\1>', '', s, flags=re.S | re.I)
    s = re.sub(r'<summary>\s*(?:<[^>]+>)*(.*?)(?:<[^>]+>)*\s*</summary>', r'\n\n###### \1\n\n', s, flags=re.S | re.I)
    s = re.sub(r'<h([1-6])[^>]*>(.*?)</h\1>', lambda m: '\n' + '#' * int(m[1]) + ' ' + m[2].replace('\n', ' ') + '\n', s, flags=re.S | re.I)
    parts, lines, title, fence = [], [], '', None
    cur = (0, '')
    src = s.split('\n')
    for i, ln in enumerate(src):
        f = re.match(r'\s*(```+|~~~+)', ln)
        if fence is not None:
            if f and f[1][0] == fence[0][0] and len(f[1]) >= len(fence[0]) and ln.strip() == f[1]:
                if len(fence) - 1 <= 8:
                    lines.extend('\x00' + c for c in fence[1:] if c.strip())
                fence = None
            else:
                fence.append(ln)
            continue
        if f:
            fence = [f[1]]
            continue
        h = re.match(r'\s{0,3}(?:\d+\.\s+)?(#{1,6})\s+(.*?)\s*#*\s*$', ln)
        bold = re.match(r'\s*(?:[-*]\s+|\d+[.)]\s+)?(?:\*\*|__)\s*(?:Q\s*\d*\s*[:.)-]\s*)?(.{8,200}?\?)\s*(?:\*\*|__)\s*:?\s*$', ln) or \
            re.match(r'\s*(?:\*\*)?Q\s*\d*\s*[:.)]\s*(?:\*\*)?\s*(.{8,200}\?)\s*(?:\*\*)?\s*$', ln)
        under = i + 1 < len(src) and re.match(r'(=+|-+)\s*$', src[i + 1]) and len(src[i + 1].strip()) > 2 and re.match(r'\w', ln) and \
            (i == 0 or not src[i - 1].strip())
        if h and re.match(r'\**answers?\W*$', h[2], re.I):
            continue
        if h or bold or under:
            parts.append((*cur, lines))
            lines = []
            cur = (len(h[1]), h[2]) if h else (6, bold[1]) if bold else (1 if src[i + 1][0] == '=' else 2, ln)
            continue
        if re.match(r'(=|-){3,}\s*$', ln) or re.match(r'\s*(\[[^\]]+\]:\s|:::|!!!|\?\?\?|=== "|import .* from |export (const|default)|\|?\s*:?-{2,}.*\||\{:|<!|>?\s*\[!\w+)', ln) or \
                re.match(r'(    |\t)\S', ln) and not re.match(r'\s*([-*+]|\d+\.)\s', ln) and (not lines or not lines[-1].strip()):
            continue
        ln = re.sub(r'^\s*>\s?', '', ln)
        ln = re.sub(r'^\s*(\*\*)?A\s*:(\*\*)?\s+', '', ln)
        if ln.strip().startswith('|'):
            ln = '\x00' + inline(', '.join(c.strip() for c in ln.strip().strip('|').split('|') if c.strip()))
        lines.append(ln if ln.startswith('\x00') else re.sub(r'^(\s*)[*+](\s)', r'\1-\2', inline(ln)))
    parts.append((*cur, lines))
    title = inline(meta.get('title', '') or meta.get('linktitle', ''))
    if not title:
        title = next((inline(h) for lv, h, _ in parts if lv == 1), '')
    return title, inline(meta.get('description', '') or meta.get('summary', '')), parts


def rst(s, path):
    s = re.sub(r'(?<!`)`(?!`)([^`\n]*)\n\s*([^`\n]*)`(?!`)', r'`\1 \2`', s)
    src, parts, lines, cur, order = s.split('\n'), [], [], (0, ''), []
    i, skip = 0, None
    while i < len(src):
        ln = src[i]
        ind = len(ln) - len(ln.lstrip())
        if skip is not None:
            if not ln.strip() or ind > skip:
                i += 1
                continue
            skip = None
        over = re.match(r'([=\-~^"\'#*+`.:_])\1{2,}\s*$', ln)
        if over and i + 2 < len(src) and src[i + 2].startswith(ln[:3]) and src[i + 1].strip():
            mark, head, step = ln[0] * 2, src[i + 1].strip(), 3
        elif ln.strip() and ind == 0 and i + 1 < len(src) and re.match(r'([=\-~^"\'#*+`.:_])\1{2,}\s*$', src[i + 1]) and \
                len(src[i + 1].rstrip()) >= len(ln.rstrip()) - 1:
            mark, head, step = src[i + 1][0], ln.strip(), 2
        else:
            d = re.match(r'\s*\.\.\s*([\w:-]+)::\s*(.*)', ln)
            if re.match(r'\s*\.\.(\s|$)', ln):
                if d and d[1] in ('note', 'tip', 'warning', 'important', 'seealso', 'attention', 'hint'):
                    if d[1] == 'seealso':
                        skip = ind
                    else:
                        lines.append(inline(d[2]))
                else:
                    skip = ind
            elif ln.rstrip().endswith('::'):
                lines.append(inline(ln.rstrip()[:-1]))
                skip = ind
            elif not re.match(r'\s*(:[\w -]+:(\s|$)|>>>|\+[-=+]+|\||=+\s+=)', ln):
                lines.append(re.sub(r'^\*(\s)', r'-\1', inline(re.sub(r'\b(\w+)_(?=\W|$)', r'\1', ln))))
            i += 1
            continue
        if mark not in order:
            order.append(mark)
        parts.append((*cur, lines))
        cur, lines = (order.index(mark) + 1, head), []
        i += step
    parts.append((*cur, lines))
    return next((inline(h) for lv, h, _ in parts if lv == 1), ''), '', parts


def adoc(s, path):
    parts, lines, cur, block = [], [], (0, ''), None
    for ln in s.split('\n'):
        if block:
            if ln.strip() == block:
                block = None
            continue
        if re.match(r'(-{4,}|\.{4,}|/{4,}|\+{4,}|\|===|={4,}|\*{4,})\s*$', ln):
            if ln[0] not in '=*':
                block = ln.strip()
            continue
        h = re.match(r'(=+|#+)\s+(.*)', ln)
        if h:
            parts.append((*cur, lines))
            cur, lines = (len(h[1]), adoc_inline(h[2])), []
        elif not re.match(r'(//|\[|image::|include::|ifdef|ifndef|endif|:[\w!-]+:|video::|\.[A-Z]|\+\s*$|--$|toc::)', ln):
            ln = re.sub(r'^(NOTE|TIP|WARNING|IMPORTANT|CAUTION):\s*', '', ln)
            lines.append(re.sub(r'^\.+\s', '- ', re.sub(r'^\*+\s', '- ', adoc_inline(ln))))
    parts.append((*cur, lines))
    return next((h for lv, h, _ in parts if lv == 1), ''), '', parts


def yaml_faq(s, path):
    """question:/answer: (or q:/a:, title:/content:) records, without a YAML library."""
    parts = []
    pat = r'^[ \t-]*(?:question|q|title|name)\s*:\s*(.+(?:\n[ \t]{4,}(?!answer|a:)[^\n:]*$)*)\n[ \t-]*(?:answer|a|content|text|description)\s*:\s*((?:.*)(?:\n(?:[ \t]{3,}\S.*|[ \t]*$))*)'
    for q, a in re.findall(pat, s, re.M | re.I):
        q, a = (re.sub(r'^[>|][-+]?\s*', '', x.strip()).strip('"\' ') for x in (q, a))
        if '?' in q:
            parts.append((3, q, [inline(x) for x in re.sub(r'</p>|<br */?>', '\n\n', a).split('\n')]))
    return '', '', parts


def page_pairs(title, desc, parts, path, per_page=PER_PAGE):
    """The pairs of one page: title, description, then its best headings (questions first)."""
    faq = bool(re.search(r'(^|[^a-z])(faqs?|questions|troubleshooting)([^a-z]|$)', path.lower()))
    title = re.sub(r'\s+[|–—]\s+.*$', '', re.sub(r'\s*\{#.*\}|\s*\(preview\)', '', title)).strip()
    pairs, secs = [], []
    first = ''
    for level, head, lines in parts:
        text = finish(lines)
        head = inline(re.sub(r'\s*\{#.*?\}\s*$|<a [^>]*>|</a>', '', head)).strip(' :#*')
        head = re.sub(r'^(\d+(\.\d+)*[.):]?|Q\d*[:.)]|[^\w"\'(¿]+)\s+', '', head)
        if not first and (level <= 1 or GENERIC.match(head) or not head) and len(text) >= LOW:
            first = text
        elif head and level >= 1 and len(text) >= LOW and not DROP.match(head) and head.lower() != title.lower():
            secs.append((head, text))
    if first and title and not re.match(r'(readme|index|home)\b', title, re.I) and not (faq and DROP.match(title)):
        if desc and desc.lower() != title.lower() and len(desc) > 20:
            lead = first if first.startswith(desc[:40]) else desc + '\n' + first
            pairs.append((title, lead))
            if not first.startswith(desc[:40]):
                pairs.append((desc, first))
        else:
            pairs.append((title, first))
    ask, other = [], []
    for head, text in secs:
        if title and head.endswith('?') and len(head.split()) <= 5 and not faq:
            other.append((f'{title}: {head}', text))
        elif head.endswith('?') or (faq and QUESTION.match(head)):
            ask.append((head, text))
        elif faq and len(head.split()) >= 3:
            ask.append((head, text))
        elif len(head.split()) >= 5 and not GENERIC.match(head):
            other.append((head, text))
        elif title and not DROP.match(title):
            k = int(hashlib.md5((path + head).encode()).hexdigest(), 16) % 3
            other.append((title if re.match(r'(ingredients|directions|preparation)', head, re.I) and k else
                          (f'{title}: {head}', f'{head} - {title}', f'{title} {head[:1].lower() + head[1:]}')[k], text))
    other.sort(key=lambda p: (not re.match(r'how (to|do|can)\b', p[0], re.I), hashlib.md5((path + p[0]).encode()).hexdigest()))
    pairs += ask[:PER_FAQ]
    pairs += other[:max(0, per_page - len(pairs))]
    return pairs


def cnxml(s, path):
    """OpenStax: module and section titles, titled notes, key terms (their paragraph, and by their meaning)."""
    s = re.sub(r'\sxmlns(:\w+)?="[^"]*"', '', s)
    s = re.sub(r'(</?)\w+:(\w)', r'\1\2', s)
    s = re.sub(r'<math\b.*?</math>', '\u25a1', s, flags=re.S)         # paragraphs with mathematics are left out below
    try:
        root = ET.fromstring(re.sub(r'\s\w+:(\w+=")', r' \1', s))
    except ET.ParseError:
        return []
    flat = lambda e: re.sub(r'\s+([,.;)])', r'\1', re.sub(r'\s+', ' ', ''.join(e.itertext()))).strip()
    for parent in root.iter():
        for c in list(parent):
            if c.tag in ('figure', 'table', 'media', 'exercise', 'equation', 'footnote'):
                if c.tail:
                    i = list(parent).index(c)
                    if i:
                        parent[i - 1].tail = (parent[i - 1].tail or '') + c.tail
                    else:
                        parent.text = (parent.text or '') + c.tail
                parent.remove(c)
    for e in root.iter('para'):                    # "(Figure 1)" links carry no text
        for l in e.iter('link'):
            if not (l.text or '').strip():
                l.text = ''
    title = flat(root.find('title')) if root.find('title') is not None else ''
    content = root.find('content')
    if content is None or not title or re.match(r'(preface|about|index|references|answer key|appendix|acknowledg)', title, re.I):
        return []
    tidy = lambda t: re.sub(r'\(shown in\)|\s*\((see )?\s*\)', '', t).split('\u25a1')[0].rpartition('\n')[0] if '\u25a1' in t else \
        re.sub(r'\s*\((see )?\s*\)', '', t)
    lines = lambda p: [flat(p)] if p.tag == 'para' else ['- ' + flat(i) for i in p.iter('item')]
    under = lambda e: tidy('\n'.join(l for p in e if p.tag in ('para', 'list') for l in lines(p)))
    pairs = []
    if title not in ('Introduction', 'Preface'):
        pairs.append((title, under(content) or next((under(x) for x in content.iter('section') if under(x)), '')))
    secs = []
    for sec in list(content.iter('section')) + list(content.iter('note')):
        h = sec.find('title')
        if h is None:
            continue
        h = flat(h)
        h = h.capitalize() if h.isupper() else h
        if re.match(r'(key (terms|concepts|equations|takeaways)|(chapter |section )?(summary|review|exercises)|.*learning (objectives|outcomes)|teacher support|'
                    r'.*(questions|problems|exercises)|glossary|solution|try it|check|additional|challenge|career|strategy|significance)', h, re.I) or DROP.match(h):
            continue
        secs.append((h if len(h.split()) >= 5 or h.endswith('?') else f'{title}: {h}', under(sec)))
    pairs += secs[:12]
    paras = [(p, tidy(flat(p))) for p in content.iter('para')]
    meaning = {}
    for d in root.iter('definition'):
        t, m = d.find('term'), d.find('meaning')
        if t is not None and m is not None:
            meaning[flat(t).lower()] = (flat(t), flat(m))
    seen = set()
    for p, text in paras:
        for t in p.iter('term'):
            k = flat(t).lower()
            if k in seen or t.get('class') == 'no-emphasis' or len(text) < LOW:
                continue
            seen.add(k)
            v = int(hashlib.md5(k.encode()).hexdigest(), 16) % 4
            if k in meaning and v < 2 and len(meaning[k][1].split()) >= 4:
                pairs.append((meaning[k][1], text))
            else:
                pairs.append(((f'What is {k}?', f'{k} definition', f'{k} - {title}', f'meaning of {k}')[v], text))
            break
    return pairs


def mallard(s, path):
    """GNOME help pages (.page)."""
    try:
        root = ET.fromstring(re.sub(r'\sxmlns(:\w+)?="[^"]*"|(?<=\s)\w+:(?=\w+=")', '', re.sub(r'</?\w+:\w[^>]*>', '', s)))
    except ET.ParseError:
        return '', '', []
    flat = lambda e: re.sub(r'\s+', ' ', ''.join(e.itertext())).strip() if e is not None else ''
    def body(e):
        out = []
        for c in e:
            if c.tag == 'p':
                out += [flat(c), '']
            elif c.tag in ('steps', 'list'):
                out += ['- ' + flat(i) for i in c.iter('item')]
            elif c.tag in ('note', 'if', 'choose', 'when'):
                out += body(c)
        return out
    desc = re.sub(r'\s+', ' ', root.findtext('info/desc') or '').strip()
    parts = [(0, '', body(root))] + [(2, flat(x.find('title')), body(x)) for x in root.iter('section')]
    return flat(root.find('title')), desc, parts


FORMATS = {'.page': mallard, '.erb': markdown, '.md': markdown, '.mdx': markdown, '.markdown': markdown, '.rst': rst, '.adoc': adoc, '.asc': adoc,
           '.yml': yaml_faq, '.yaml': yaml_faq}


def repo_pairs(gd, commit, prefix, repo, cap):
    out, seen, used = [], set(), {}
    pages = list(files(gd, commit, prefix))
    per_page = PER_PAGE if len(pages) > 20 else 30      # a repository of few, long pages
    for path, s in pages:
        ext = os.path.splitext(path)[1].lower()
        if ext == '.cnxml':
            made = cnxml(s, path)
        else:
            try:
                made = page_pairs(*FORMATS[ext](s, path), path, per_page)
            except RecursionError:
                continue
        for q, t in made:
            q = re.sub(r'\s+', ' ', q).strip(' :')
            t = cut(t.strip(), q)
            k = q.lower()
            h = t[:60].lower()
            if k in seen or used.get(h, 0) >= 2 or not good_query(q) or not good_text(t):
                continue
            seen.add(k)
            used[h] = used.get(h, 0) + 1
            out.append({'query': q, 'text': t, 'source': repo})
    if len(out) > cap:                             # an even sample; questions stay
        out.sort(key=lambda r: (not r['query'].endswith('?'), hashlib.md5((r['query'] + repo).encode()).hexdigest()))
        out = out[:cap]
    return out


def main():
    mode, mirrors = sys.argv[1:3]
    if mode == 'probe':
        for line in sys.stdin:
            f = (line.split() + ['', '', '', ''])[:4]
            gd = gitdir(mirrors, f[0])
            commit = git(gd, 'rev-parse', f[3] or 'HEAD').decode().strip()
            lic = licence(gd, commit) if commit else 'refused: no mirror'
            if lic.startswith('refused'):
                print(f[0], lic, file=sys.stderr)
            else:
                print(f[0], commit, lic, f[1].strip('.'), f[2] or CAP, sep='\t')
        return
    rows = [l.rstrip('\n').split('\t') for l in open(sys.argv[3]) if l.strip() and not l.startswith('#')]
    out = sys.argv[4]
    done = set()
    parts = sorted(f for f in os.listdir(out) if re.match(r'docs-\d+\.jsonl\.gz$', f))
    for f in parts:
        done |= {json.loads(l)['source'] for l in gzip.open(os.path.join(out, f), 'rt')}
    rows = [r for r in rows if r[0] not in done]
    n = len(parts)
    for i in range(0, len(rows), 10):
        path = os.path.join(out, f'docs-{n:02d}.jsonl.gz')
        n += 1
        with gzip.open(path + '.tmp', 'wt') as fh:
            for repo, commit, lic, prefix, cap in rows[i:i + 10]:
                made = repo_pairs(gitdir(mirrors, repo), commit, prefix, repo, int(cap))
                for r in made:
                    fh.write(json.dumps(r, ensure_ascii=False) + '\n')
                print(len(made), repo, flush=True)
        os.rename(path + '.tmp', path)


if __name__ == '__main__':
    main()
