"""A process that has searched is forked: the child searches, or is told why it cannot."""

import multiprocessing
import os
import signal
import threading
from functools import partial

import numpy as np
import pytest

import crossknn as ck
from crossknn.types import Pairs

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
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


def test_a_pool_of_forks(searcher):
    global inherited
    inherited = searcher
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map_async(inherited_search, ["topic 1", "topic 2", "topic 3"]).get(60)
    assert found == [20, 20, 20]


def inherited_search(query):
    return inherited.search(query, budget=20).n_scored


WORK = {
    "search": lambda s: s.search("a child", budget=20),
    "rerank": lambda s: ck.rerank("a child", ["a", "b"], scorer=s.scorer.scorer),
    "scores": lambda s: len(s.index.scores),
    "score": lambda s: list(s.scorer.score(PAIR, ["a"], ["b"])),
}


def test_while_threads_search(searcher):
    """A child that was forked during a search is refused at once: it would wait for ever."""
    inside, go_on = threading.Event(), threading.Event()

    def wait(number, picks):
        inside.set()
        go_on.wait(30)

    thread = threading.Thread(target=searcher.search, args=("parent",), kwargs={"on_round": wait})
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
