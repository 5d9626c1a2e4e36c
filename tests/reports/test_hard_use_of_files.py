"""Full disks, read-only folders, file systems without locks, too many open files, files cut in use.

Also processes that are forked after a search. Nothing is lost, nothing blocks what comes after, and what is whole is never called damaged.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import crossknn as ck
from crossknn.errors import CrossknnError
from crossknn.index.storage import IndexFolder
from crossknn.types import Pairs

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts, limits")
SEARCH = """
import crossknn as ck
from crossknn.extend import ScoreStore
from crossknn.scores.stored import StoredScorer
def search(folder):
    index = ck.ItemIndex.load(folder)
    searcher = ck.Searcher(index, StoredScorer(ck.CrossEncoder(), index.scores))
    return [hit.id for hit in searcher.search("zip", k=2).hits[0]]
def said(do):
    try:
        do()
    except ck.CrossknnError as error:
        return str(error)
    return ""
"""


def run(code, folder, *before, **environment):
    """What a process of its own printed; it may not die of a signal or a traceback."""
    how = {"cwd": folder, "env": os.environ | environment, "timeout": 100}
    line = [*before, sys.executable, "-c", SEARCH + code]
    done = subprocess.run(line, capture_output=True, text=True, **how)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_an_empty_store_is_none(folder):
    """A full disk leaves a `scores.db` of 0 bytes, which blocked search, verify and serve."""
    (folder / "scores.db").write_bytes(b"")
    index = ck.ItemIndex.load(folder)
    assert (len(index.scores), index.verify()) == (0, [])
    ck.collect_anchors(index, ck.CrossEncoder(), ["zip it"])
    assert len(ck.ItemIndex.load(folder).scores)


FULL = """
import errno, os
from pathlib import Path
ck.ItemIndex.build([f"text number {i}" for i in range(50)], lsa=2).save("index")
first = search("index")
def fill():
    with open("more", "ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(512))
        except OSError:
            pass
fill()
print(search("index") == first, "stored")
for name in ("scores.db", "scores.db-wal", "scores.db-shm"):
    Path("index", name).unlink(missing_ok=True)
fill()
print(search("index") == first, "new")
print(ck.ItemIndex.load("index").verify())
print(said(lambda: ck.ItemIndex.load("index").add([{"id": "x", "text": "word " * 9999}])))
print(said(lambda: ck.ItemIndex.build(["some words " * 9999]).save("other")), Path("other").exists())
os.unlink("more")
print(search("index") == first, len(ck.ItemIndex.load("index").scores) > 0)
"""


def test_a_full_disk(tmp_path):
    mount = f"mount -t tmpfs -o size=1500k tmpfs {tmp_path} && cd {tmp_path} && exec "
    can = ["unshare", "-rm", "sh", "-c", f'{mount} "$0" "$@"']
    if not shutil.which("unshare") or subprocess.run([*can, "true"], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    stored, new, verified, added, built, after = run(FULL, tmp_path, *can)
    assert (stored, new, verified) == ("True stored", "True new", "[]")
    assert "cannot be written: No space left on device; nothing was changed" in added
    assert "cannot be written: No space left on device" in built
    assert built.endswith("False")
    assert after == "True True"


NO_LOCKS = """
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <dlfcn.h>
int flock(int fd, int how) { errno = ENOLCK; return -1; }
static int none(int fd, int command, void *argument, const char *name) {
    if (command == F_SETLK || command == F_SETLKW || command == F_GETLK) { errno = ENOLCK; return -1; }
    return ((int (*)(int, int, ...)) dlsym(RTLD_NEXT, name))(fd, command, argument);
}
int fcntl(int fd, int command, ...) {
    va_list all; va_start(all, command); void *argument = va_arg(all, void *); va_end(all);
    return none(fd, command, argument, "fcntl");
}
int fcntl64(int fd, int command, ...) {
    va_list all; va_start(all, command); void *argument = va_arg(all, void *); va_end(all);
    return none(fd, command, argument, "fcntl64");
}
"""
WITHOUT = """
from pathlib import Path
before = sorted(Path("index").rglob("data-*/*"))
print(search("index"))
index = ck.ItemIndex.load("index")
print(said(lambda: index.add([{"id": "x", "text": "new"}])))
print(said(lambda: index.delete(["0"])))
print(said(lambda: ck.ItemIndex.build(["some words"]).save("index")))
print(said(lambda: ck.collect_anchors(index, ck.CrossEncoder(), ["zip it"])))
print(sorted(Path("index").rglob("data-*/*")) == before)
"""


def test_a_file_system_without_locks(folder):
    """Two writers destroyed an index silently where `flock` raises ENOLCK."""
    (folder.parent / "none.c").write_text(NO_LOCKS)
    compiler = ["cc", "-shared", "-fPIC", "-o", "none.so", "none.c", "-ldl"]
    if (
        not shutil.which("cc")
        or subprocess.run(compiler, cwd=folder.parent, check=False).returncode
    ):
        pytest.skip("there is no compiler")
    hits, *refused, same = run(WITHOUT, folder.parent, LD_PRELOAD=str(folder.parent / "none.so"))
    assert hits.startswith("['")
    for said in refused:
        assert "its file system has no locks (No locks available)" in said
    assert same == "True"


MANY = """
import gc, os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
search("index")
opened = []
try:
    while True:
        opened.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for _ in range(7):
    print(said(lambda: search("index")))
    print(said(lambda: len(ck.ItemIndex.load("index").scores)))
    print(said(lambda: ck.ItemIndex.load("index").verify()))
    print(said(lambda: ck.CrossEncoder()))
    for _ in range(6):
        os.close(opened.pop())
gc.collect()  # reference cycles keep the files of earlier indexes open
print(said(lambda: search("index")))
"""


def test_too_many_open_files_are_no_damage(folder):
    said = run(MANY, folder.parent)
    assert any("Too many open files" in sentence for sentence in said)
    assert said[-1] == ""
    for sentence in said:
        assert not any(word in sentence for word in ("damaged", "there is no", "copy it again"))


DENIED = """
import os
search("warm")
os.setgid(65534); os.setuid(65534)
print(search("index"), ck.ItemIndex.load("index").verify())
print(said(lambda: ck.ItemIndex.load("index").add([{"id": "x", "text": "new"}])))
print(said(lambda: search("closed")))
print(said(lambda: search("part")))
print(said(lambda: ScoreStore("secret.db")))
"""


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="root can be another")
def test_without_permission(folder):
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        base = Path(name)
        index = ck.ItemIndex.load(folder)
        for made in ("index", "closed", "part", "warm"):
            index.save(base / made)
        (base / "index" / "scores.db").write_bytes(b"")
        (base / "secret.db").write_bytes(b"x" * 4096)
        base.chmod(0o755)
        for path in base.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        for path in (base / "closed", base / "secret.db", next((base / "part").glob("*/*.utf8"))):
            path.chmod(0)
        hits, added, closed, part, secret = run(DENIED, base)
    assert hits.startswith("['")
    assert hits.endswith("[]")
    assert "Permission denied" in added
    for said in (closed, part, secret):
        assert "ermission denied" in said
        assert "damaged" not in said
        assert "there is no" not in said


CUT = """
import os, pathlib
index = ck.ItemIndex.load("index")
searcher = ck.Searcher(index, ck.CrossEncoder())
if WARM:
    searcher.search("zip", k=2)
for path in pathlib.Path("index").glob("data-*/*"):
    os.truncate(path, 10)
print(said(lambda: searcher.search("sort", k=2)))
print(said(lambda: list(index.items.texts)))
print(said(lambda: index.items.texts[3]))
print(said(lambda: ck.ItemIndex.load("index")))
"""


@pytest.mark.parametrize("warm", [True, False])
def test_files_cut_in_place_end_no_process(folder, warm):
    """Reading what is mapped and gone is SIGBUS, which no Python code can catch."""
    said = run(CUT.replace("WARM", str(warm)), folder.parent)
    assert "in use: build or copy the index again" in said[1]
    assert "is damaged" in said[3]


def test_a_damaged_manifest_costs_no_data(folder):
    """An unreadable manifest names no data folder: all were removed at the next writing."""
    before = sorted(folder.glob("data-*/*"))
    (folder / "crossknn-index.json").write_bytes(b"{")
    with pytest.raises(CrossknnError, match="is damaged"):
        ck.ItemIndex.load(folder)
    with IndexFolder(folder).changing():
        pass
    assert sorted(folder.glob("data-*/*")) == before


PAIR = Pairs(np.zeros(1, np.int64), np.zeros(1, np.int64))
TEXTS = [f"text number {n} about topic {n % 7} and thing {n % 11}" for n in range(200)]


@pytest.fixture
def searcher(tmp_path):
    ck.ItemIndex.build(TEXTS, lsa=4).save(tmp_path / "index")
    index = ck.ItemIndex.load(tmp_path / "index")
    found = ck.Searcher(index, ck.StoredScorer(ck.CrossEncoder(), index.scores))
    found.search("topic", budget=20)
    return found


def child(work):
    """What a fork's `work` says; it has 20 seconds, since what hangs hangs for ever."""
    read, write = os.pipe()
    if not (number := os.fork()):
        signal.alarm(20)
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(number, 0)
    assert status == 0
    with os.fdopen(read) as answer:
        return answer.read()


def test_after_a_search(searcher):
    assert child(lambda: searcher.search("a child", budget=20).n_calls) == "20"
    assert child(lambda: searcher.search("a child", budget=20).n_calls) == "0"
    assert searcher.search("a child", budget=20).n_calls == 0
    assert searcher.index.scores.verify() == []


WORK = {
    "search": lambda s: s.search("a child", budget=20),
    "rerank": lambda s: ck.rerank("a child", ["a", "b"], scorer=s.scorer.scorer),
    "scores": lambda s: len(s.index.scores),
    "score": lambda s: list(s.scorer.score(PAIR, ["a"], ["b"])),
}


def test_while_threads_search(searcher):
    """A child that was forked during a search is refused at once: it would wait for ever."""
    inside, go_on = threading.Event(), threading.Event()

    def wait(done, total):
        inside.set()
        go_on.wait(30)

    thread = threading.Thread(target=searcher.search, args=("parent",), kwargs={"progress": wait})
    thread.start()
    try:
        assert inside.wait(30)
        answers = {name: child(partial(work, searcher)) for name, work in WORK.items()}
    finally:
        go_on.set()
        thread.join()
    for name, answer in answers.items():
        assert answer.startswith("InputError: this process was forked while "), name
        assert "'spawn'" in answer, name
    assert searcher.search("parent", budget=20).n_scored == 20
