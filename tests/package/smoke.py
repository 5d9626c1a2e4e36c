"""Whether an installed crossknn works, and how big it is with all it needs: python smoke.py"""

import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import crossknn as ck

PAGE = Path(__file__).parents[2] / "docs/how-to/installing.md"
SAID = re.search(r"takes (\d+) MB in \d+ packages", PAGE.read_text())

texts = ["how to sort a list", "how to read a file", "how to lock a door"]
assert Path(sys.prefix) in Path(ck.__file__).parents, f"{ck.__file__} is not installed"
index = ck.ItemIndex.build(texts, encoder=ck.DualEncoder(), lsa=2)
results = ck.Searcher(index, ck.CrossEncoder()).search("open a document", k=2, budget=2)
assert results.n_calls == 2, results.n_calls
assert results[0][0].text == texts[1], results[0]
command = Path(sys.executable).with_name("crossknn")
for arguments in (["--version"], ["demo"]):
    subprocess.run([command, *arguments], check=True, stdout=subprocess.DEVNULL)
assert "torch" not in sys.modules

sizes = {
    package.metadata["Name"]: sum(
        file.locate().stat().st_size for file in package.files or [] if file.locate().exists()
    )
    / 1e6
    for package in distributions()
    if package.metadata["Name"] not in ("pip", "setuptools")
}
for name, size in sorted(sizes.items(), key=lambda pair: -pair[1])[:10]:
    print(f"{size:6.1f} MB  {name}")
total = sum(sizes.values())
print(f"{total:6.1f} MB  {len(sizes)} packages in all")
assert total <= int(SAID[1]) + 5, f"{PAGE} says {SAID[1]} MB: say {total:.0f}, and what for"
