"""What `make docs` adds to the pages of docs/: the API, the commands and the evidence.

A hook of MkDocs (mkdocs.yml). The evidence is the report of `crossknn-lab reproduce`, kept in
benchmarks/results/evidence.tar.xz; the page has its pictures and shorter tables.

    python lab/site.py REPORT COMMIT    # keep that report, and the means of evidence/index.md
"""

from __future__ import annotations

import io
import json
import os
import posixpath
import re
import sys
import tarfile
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from crossknn_lab.curves import both_palettes
from crossknn_lab.page import slug

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks/results/evidence.tar.xz"
LONGEST = 42  # lines of a table of the evidence that is on the page
GROUPS = {
    "Searching": ("search", "rerank", "sample"),
    "Indexes and retrievers": ("index", "retrievers"),
    "Scorers and scores": ("scorers", "scores"),
    "Methods": ("methods",),
    "Fitting": ("fitting",),
    "Evaluation": ("evaluation",),
    "Data, values and errors": ("data", "types", "errors"),
}
"""Pages of the API, and the modules whose public names are on each."""

TYPES = {"path": "PATH", "str": "TEXT", "int": "INTEGER", "float": "NUMBER", "list[str]": "TEXT"}
TYPES |= {"list[Path]": "PATH", "int range": "INTEGER", "float range": "NUMBER"}
"""Words for the types of options and arguments."""

WEIGHTS = {"how-to/": 2, "reference/api/": 0.5, "evidence/": 0.5}
"""What pages in these folders weigh in the site's search, where others weigh 1."""

FORMATS = "[formats](../formats.md)"

RETURNED = {
    "Evaluation": (
        *("evaluation.verdict.Verdict", "evaluation.verdict.Claim"),
        *("evaluation.diagnosis.Diagnosis", "evaluation.measures.Comparison"),
    ),
}
"""What functions of a page return that has no name in `crossknn` itself."""


def on_config(config: Any) -> Any:
    """Put the made pages into the navigation."""
    python, program = api(), commands()
    made = python | program
    parts = {next(iter(part)): next(iter(part.values())) for part in config.nav}
    parts["Reference"][1:1] = [
        {"Python": [{title_of(text): path} for path, text in python.items()]},
        {"Command line": [{title_of(text): path} for path, text in program.items()]},
    ]
    if REPORT.exists():
        made["evidence/report.md"] = report()
        parts["Evidence"].append({"All figures": "evidence/report.md"})
    config.extra["made"] = made
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the made pages, and the pictures of the report."""
    from mkdocs.structure.files import File

    for path, text in config.extra["made"].items():
        files.append(File.generated(config, path, content=text))
    if REPORT.exists():
        with tarfile.open(REPORT) as archive:
            for member in archive.getmembers():
                if member.isfile() and member.name.startswith("images/"):
                    picture = archive.extractfile(member)
                    assert picture is not None
                    path, svg = f"evidence/{member.name}", both_palettes(picture.read().decode())
                    files.append(File.generated(config, path, content=svg))
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Weigh a page for the site's search."""
    for folder, weight in WEIGHTS.items():
        if page.file.src_uri.startswith(folder):
            page.meta.setdefault("search", {}).setdefault("boost", weight)
    return text


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Lead a notebook's links to pages."""
    if page.file.src_uri.endswith(".ipynb"):
        html = re.sub(r'href="([^":#]+\.(?:md|ipynb))(?=[#"])', partial(_link, page, files), html)
    return html


def _link(page: Any, files: Files, found: re.Match[str]) -> str:
    """`href="..` of the page that a notebook names by its file, as MkDocs does it in Markdown."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), found[1]))
    file = files.get_file_from_path(path)
    return found[0] if file is None else f'href="{file.url_relative_to(page.file)}'


def on_post_build(config: Any) -> None:
    """Refuse links of the built site that lead nowhere."""
    site = Path(config.site_dir)
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    names = {path: {*re.findall(r'(?:id|name)="([^"]+)"', text)} for path, text in pages.items()}
    for path, text in pages.items():
        for link in {*re.findall(r'(?:href|src)="([^":]+)"', text)} - {"."}:
            file, _, name = unquote(link).partition("#")
            to = site / file[1:] if file.startswith("/") else (path.parent / file if file else path)
            to = Path(os.path.normpath(to / "index.html" if to.is_dir() else to))
            if not to.exists() or (name and to in names and name not in names[to]):
                raise ValueError(f"{path.relative_to(site)} links to {link}, which is not there")


def title_of(text: str) -> str:
    return text.split("\n", 1)[0].removeprefix("# ")


def api() -> dict[str, str]:
    """A page of each group of public names, from the stub that lists them."""
    stub = (ROOT / "src/crossknn/__init__.pyi").read_text(encoding="utf-8")
    names = re.findall(r"from \.([\w.]+) import (\w+) as", stub)
    pages, overview = {}, ["# Python", "", "All names here are names of `crossknn`."]
    for group, homes in GROUPS.items():
        mine = [(module, name) for module, name in names if module.split(".")[0] in homes]
        links = ", ".join(f"[`{name}`][crossknn.{module}.{name}]" for module, name in mine)
        overview += ["", f"[{group}]({slug(group)}.md): {links}."]
        lines = [
            f"# {group}",
            "",
            "All names here are names of `crossknn` (`import crossknn as ck`).",
        ]
        lines += [line for at in mine for line in ("", f"::: crossknn.{'.'.join(at)}")]
        if group in RETURNED:
            lines += ["", "What they return, besides, is in modules of its own."]
        lines += [line for name in RETURNED.get(group, ()) for line in ("", f"::: crossknn.{name}")]
        pages[f"reference/api/{slug(group)}.md"] = "\n".join(lines) + "\n"
    return {"reference/api/index.md": "\n".join(overview) + "\n"} | pages


def commands() -> dict[str, str]:
    """A page of each command, as `--help` says it, and one that lists them."""
    import typer

    from crossknn.cli.app import app

    program: Any = typer.main.get_command(app)
    names, pages = [], {}
    with typer.Context(program, info_name="crossknn") as ctx:
        for name, command in sorted(program.commands.items()):
            path = f"crossknn-{name}.md"
            pages[f"reference/cli/{path}"] = "\n".join(_command(command, ctx, name, "#"))
            names.append((f"crossknn {name}", path, command))
            inner = getattr(command, "commands", {})
            names += [
                (f"crossknn {name} {n}", f"{path}#crossknn-{name}-{n}", c) for n, c in inner.items()
            ]
    table = [f"| [`{name}`]({path}) | {_prose(_about(c))} |" for name, path, c in names]
    codes = program.epilog.removeprefix("Exit codes: ").rstrip(".").split("; ")
    lines = ["# Command line", "", program.help, "", "| command | what it does |", "|---|---|"]
    lines += [*table, "", "## Exit codes", ""]
    lines += ["- {}: {}".format(*code.split(" ", 1)) for code in codes]
    lines += ["", "[Errors and exit codes](../errors.md) says what to do about each."]
    return {"reference/cli/index.md": "\n".join(lines)} | pages


def _command(command: Any, parent: Any, name: str, level: str) -> list[str]:
    """The lines of a command's help: what it does, examples, usage, arguments, options."""
    ctx = type(parent)(command, info_name=name, parent=parent)
    lines = [f"{level} {ctx.command_path}", "", _prose(command.help), ""]
    for intro, *rest in _epilog(command.epilog or ""):
        if all(line.startswith("$ ") for line in rest):
            lines += ["```sh", *(line[2:] for line in rest), "```", ""]
        else:
            lines += [_prose(intro), "", *(f"- {_prose(line)}" for line in rest), ""]
    usage = re.sub(r"\{(.*?)\}(\.\.\.)?", r"\1", " ".join(command.collect_usage_pieces(ctx)))
    lines += [f"Usage: `{ctx.command_path} {usage}`", ""]
    kinds: dict[str, list[str]] = {"argument": [], "option": []}
    for parameter in command.get_params(ctx):
        if (record := parameter.get_help_record(ctx)) and parameter.name != "help":
            kinds[parameter.param_type_name].append(_parameter(*record))
    for kind, found in kinds.items():
        lines += [f"**{kind.capitalize()}s**", "", *found, ""] if found else []
    for inner, each in getattr(command, "commands", {}).items():
        lines += _command(each, ctx, inner, f"{level}#")
    return lines


def _epilog(text: str) -> list[list[str]]:
    """Paragraphs, with what follows one that ends with a colon."""
    found: list[list[str]] = []
    for paragraph in filter(None, re.split(r"\n\n+", text)):
        if paragraph.endswith(":") or not found:
            found.append([paragraph])
        else:
            found[-1].append(paragraph)
    return found


def _parameter(names: str, text: str) -> str:
    """An argument or option as a list's item; its type, default and limits in words."""
    for kind, word in TYPES.items():
        names = names.replace(f"<{kind}>", word)
    text, _, more = text.partition("  [")
    facts = []
    for fact in more.rstrip("]").split("; ") if more else []:
        name, _, value = fact.partition(": ")
        limits = re.fullmatch(r"(?:(\S+)<=)?x(?:>=(\S+)|<=(\S+))", fact)
        if limits:
            low, high = limits[1] or limits[2], limits[3]
            facts.append(f"At least {low}." if high is None else f"From {low} to {high}.")
        else:
            facts.append(f"{name.capitalize()}: `{value}`." if value else f"{name.capitalize()}.")
    return f"- `{names}`: {' '.join([_prose(text), *facts])}"


def _about(command: Any) -> str:
    """The first paragraph of a command's help."""
    return " ".join(command.help.split("\n\n")[0].split())


def _prose(text: str) -> str:
    """Text of a help as Markdown: options and quoted values are code."""
    parts = re.split(r"(`[^`]*`)", text.replace("the docs' page 'Formats'", FORMATS))
    for at in range(0, len(parts), 2):
        shown = re.sub(r"(?<!\w)'([^' ][^']*)'(?!\w)", r"`\1`", parts[at])
        parts[at] = re.sub(r"(?<![\w`/-])(--?[a-z][\w-]*)(?![^`]*`[^`]*$)", r"`\1`", shown)
    return "".join(parts)


def report() -> str:
    """Return the report's page without folded and very long tables; the site's search skips it."""
    with tarfile.open(REPORT) as archive:
        file = archive.extractfile("page.md")
        assert file is not None
        text = file.read().decode()
    text = re.sub(r"(?m)^ *- \[.*\]\(#.*\n", "", text)  # without the contents
    text = re.sub(r"(?s)<details>.*?</details>\n*", "", text)
    text = re.sub(r"(?m)(?:^\|.*\n){3,}", _short, text)
    return f"---\nsearch:\n  exclude: true\n---\n{text}"


def _short(table: re.Match[str]) -> str:
    lines = table[0].count("\n")
    if lines <= LONGEST:
        return table[0]
    return f"The table has {lines - 2} rows; they are in `page.md` of `benchmarks/results/evidence.tar.xz`.\n"


def publish(folder: Path, commit: str) -> None:
    """Keep a report, stamped, and beside it the means over all matrices as JSON."""
    page = (folder / "page.md").read_text(encoding="utf-8")
    command = re.search(r"the preset (\w+)", page)
    assert command is not None
    made = f"`crossknn-lab reproduce --preset {command[1]}` at {commit}, {date.today().isoformat()}"
    page = re.sub(r"(?m)^(## .*)$", rf"\1\n\nMade by {made}.", page)
    # Without who made it and when, so that the same report is the same file.
    nobody: dict[str, Any] = {"uid": 0, "gid": 0, "uname": "", "gname": "", "mtime": 0}
    anonymous = partial(tarfile.TarInfo.replace, deep=False, **nobody)
    with tarfile.open(REPORT, "w:xz") as archive:
        member = tarfile.TarInfo("page.md")
        member.size = len(page.encode())
        archive.addfile(member, io.BytesIO(page.encode()))
        for picture in sorted((folder / "images").iterdir()):
            archive.add(picture, f"images/{picture.name}", filter=anonymous)
    facts = re.search(
        r"## What this is made of\n.*?\n(\| matrix.*?)\n\n((?:- [^\n]*\n)+)", page, re.DOTALL
    )
    assert facts is not None
    means = {
        k: _rows(table)
        for k, table in re.findall(
            r"Recall \(%\) at k = (\d+), mean over.*?\n\n((?:\|.*\n)+)", page
        )
    }
    found = {
        "made": made,
        "matrices": _rows(facts[1]),
        "facts": facts[2].strip().split("\n"),
        "means": means,
    }
    path = REPORT.parent / "evidence.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _rows(table: str) -> list[list[str]]:
    """The cells of a table in Markdown."""
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.strip().split("\n")]


if __name__ == "__main__":
    publish(Path(sys.argv[1]), sys.argv[2])
