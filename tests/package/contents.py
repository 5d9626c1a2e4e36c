"""Checks what a built wheel and sdist hold: python contents.py FOLDER [--release]"""

import re
import sys
import tarfile
import zipfile
from pathlib import Path

LIMIT = 52_000_000  # bytes of a file; 48 MB of the unpacked wheel are the two models, 7 the sample
MODELS = [f"crossknn/bundled/{kind}-encoder" for kind in ("cross", "dual")]
SAMPLE = "crossknn/bundled/sample"
LICENSES = {"LICENSE", *(f"src/{part}/README.md" for part in (*MODELS, SAMPLE))}
BESIDE = {"pyproject.toml", "hatch_build.py", "README.md", "CHANGELOG.md", "LICENSE"}
DATA = {
    f"{model}/{name}"
    for model in MODELS
    for name in ("README.md", "crossknn.json", "model.onnx", "tokenizer.json")
}
TEXTS = ("README.md", "corpus.jsonl", "queries.jsonl", "qrels/test.tsv")
DATA |= {f"{SAMPLE}/{name}" for name in (*TEXTS, "scores.npy", "cheap.npy", "vectors.npy")}
DATA |= {"crossknn/py.typed"}
DATA |= {
    f"crossknn/service/page/{name}" for name in ("icon.svg", "index.html", "page.css", "page.js")
}

folder, release = Path(sys.argv[1]), "--release" in sys.argv
[wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
with zipfile.ZipFile(wheel) as file:
    [about] = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
    in_wheel, metadata = set(file.namelist()), file.read(about).decode()
with tarfile.open(sdist) as file:
    in_sdist = {name.split("/", 1)[1] for name in file.getnames()}
about = about.removesuffix("METADATA")
package = {name for name in in_wheel if not name.startswith(about)}
source = {f"src/{name}" for name in package}
code = {n for n in package if n.startswith("crossknn/") and n.endswith((".py", ".pyi", ".toml"))}

surplus = package - code - DATA
surplus |= in_sdist - source - BESIDE - {"PKG-INFO", ".gitignore"}
missing = {f"{about}licenses/{name}" for name in LICENSES} - in_wheel
missing |= (source | BESIDE) - in_sdist
problems = [f"{name} does not belong into a distribution" for name in sorted(surplus)]
problems += [f"{name} is missing" for name in sorted(missing)]
for path in (wheel, sdist):
    size = path.stat().st_size
    print(f"{path.name}: {size / 2**20:.1f} MiB")
    if size > LIMIT:
        problems.append(f"{path.name} has {size:,} bytes: at most {LIMIT:,}")
for name in re.findall(r"\]\(https?://[^)]+/(?:blob|raw)/v[^/]+/([^)#]+)", metadata):
    if not Path(name).exists():
        problems.append(f"the README links to {name}, which does not exist")

if release:
    [version] = re.findall(r"^Version: (.+)$", metadata, re.MULTILINE)
    if count := len(re.findall(r"\]\((?!https?:|#)", metadata)):
        problems.append(
            f"{count} links of the README are relative, and dead on a package index: give "
            "`Repository` under [project.urls] in pyproject.toml"
        )
    if not re.search(
        rf"^## {re.escape(version)} \(\d{{4}}-", Path("CHANGELOG.md").read_text(), re.M
    ):
        problems.append(f"CHANGELOG.md has no heading  ## {version} (YYYY-MM-DD)")
    for name, count in (("lab", 2), ("train", 2)):
        if Path(name, "pyproject.toml").read_text().count(f'{version}"') != count:
            problems.append(f"{name}/pyproject.toml does not give {version} {count} times")
sys.exit("\n".join(problems) or None)
