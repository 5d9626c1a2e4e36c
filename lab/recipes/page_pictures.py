"""Make the pictures of the service's page, docs/images/page-*.webp.

    python lab/recipes/page_pictures.py [QUESTION]    # needs Chromium, playwright and Pillow

The items are the functions and classes in the Markdown files that the first cell of the tutorial
"Search your documents" writes; the first stage is BM25.
"""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Error, sync_playwright

import crossknn as ck

DOCS = Path(__file__).parents[2] / "docs"
QUESTION = "choose something by chance"
PICTURES = {  # width, height at most, scale, colours
    "light": (1240, 1900, 1, "light"),
    "dark": (1240, 1900, 1, "dark"),
    "phone": (360, 1150, 2, "light"),
}


def items() -> list[dict[str, str]]:
    """Return an item for each heading of the tutorial's files, which it writes into `manual`."""
    book = json.loads((DOCS / "tutorials/search-your-documents.ipynb").read_text(encoding="utf-8"))
    cell = next(cell for cell in book["cells"] if cell["cell_type"] == "code")
    exec("".join(cell["source"]), {})
    parts = dict[str, str]()
    for path in sorted(Path("manual").iterdir()):
        for part in path.read_text(encoding="utf-8").split("\n## ")[1:]:
            name, _, text = part.partition("\n")
            parts[name] = " ".join(text.split())
    return [{"id": name, "title": name, "text": text} for name, text in parts.items() if text]


def main(question: str) -> None:
    os.chdir(tempfile.mkdtemp())
    ck.ItemIndex.build(items(), encoder=None).save("manual.index")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "crossknn", "serve", "manual.index", "--port", port]
    service = subprocess.Popen([*command, "--budget", "50", "--deadline", "60s"])
    try:
        with sync_playwright() as driver:
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for name, (width, most, scale, scheme) in PICTURES.items():
                page = browser.new_page(
                    viewport={"width": width, "height": 800},
                    device_scale_factor=scale,
                    color_scheme=scheme,
                )
                for _ in range(60):  # until the service listens
                    try:
                        page.goto(f"http://127.0.0.1:{port}/?{urlencode({'q': question})}")
                        break
                    except Error:
                        time.sleep(1)
                page.wait_for_selector("#end:not([hidden])", timeout=120_000)
                page.evaluate("document.activeElement.blur()")
                picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
                size = (picture.width, min(picture.height, most * scale))
                picture.crop((0, 0, *size)).save(DOCS / f"images/page-{name}.webp", quality=90)
    finally:
        service.terminate()
        service.wait()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or QUESTION)
