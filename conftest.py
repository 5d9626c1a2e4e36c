"""What all tests share: those of crossknn, of crossknn-train and of the lab."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path

import hypothesis
import pytest
import typer.main

from crossknn.scorers import token_models
from crossknn.scorers.opening import bundled_folder
from crossknn.scorers.token_models import OnnxModel

ROOT = Path(__file__).parent

# Helpers of the tests.
HELPERS = ("", "adapters", "faults", "golden", "index", "service")
sys.path[:0] = [str(ROOT / "tests" / part) for part in HELPERS]

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

# What a shell starts in the background ignores interrupts, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests write thousands of files and wait for the disk each time: in memory, where there is room.
if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 2**31:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")


@pytest.fixture(scope="session", autouse=True)
def made_once():
    """Commands, and sessions and hashes of the bundled models, are made once for all tests."""
    anew, kept, bundled = OnnxModel._open, {}, bundled_folder("cross-encoder").parent
    content_hash, of_bundled = token_models.content_hash, cache(token_models.content_hash)

    def opened(model, *graph):
        key = model._folder, graph[0], model._threads
        if model._folder.parent != bundled:
            return anew(model, *graph)
        return kept[key] if key in kept else kept.setdefault(key, anew(model, *graph))

    def hash_of(folder, settings=None):
        once = settings is None and folder.parent == bundled
        return of_bundled(folder) if once else content_hash(folder, settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_models, "content_hash", hash_of)
        patch.setattr(OnnxModel, "_open", opened)
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        patch.setattr("crossknn.fitting.learning.PATIENCE", 60.0)  # tests look at what is learned
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data: `CROSSKNN_SHARED`, or `shared` beside the checkout."""
    folder = Path(os.environ.get("CROSSKNN_SHARED", ROOT.parent / "shared"))
    if not (folder / "matrices").is_dir():
        pytest.skip("the folder of shared data is absent (set CROSSKNN_SHARED)")
    return folder


def pytest_addoption(parser):
    parser.addoption("--slow-share", type=float, default=0.0, help="share of the slow tests to run")
    parser.addoption("--slow-seed", default="0", help="draws that share")


def pytest_ignore_collect(collection_path, config):
    """Do not import files whose tests all need torch if `-m "not torch"` leaves these out."""
    if config.getoption("markexpr") == "not torch":
        if ROOT / "train" / "tests" in collection_path.parents:
            return True
        if collection_path.suffix == ".py":
            mark = "\npytestmark = pytest.mark.torch\n"
            return mark in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_collection_modifyitems(config, items):
    """Leave slow tests out but for a share drawn by seed, unless a test is named by its id."""
    share, seed = config.getoption("--slow-share"), config.getoption("--slow-seed")
    if share >= 1 or any("::" in argument for argument in config.args):
        return

    def stays(item):
        drawn = blake2b(f"{seed} {item.nodeid}".encode(), digest_size=4).digest()
        return not item.get_closest_marker("slow") or int.from_bytes(drawn) < share * 2**32

    config.hook.pytest_deselected(items=[item for item in items if not stays(item)])
    items[:] = [item for item in items if stays(item)]


def pytest_collection_finish():
    """Modules stay: the garbage collector need not look through them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")  # its event loop must end before tests that have their own
def browser():
    """Chromium without a screen, driven by playwright."""
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()
