"""Interrupts (Ctrl-C) of work on several threads."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import pytest

from crossknn.scorers.threads import in_flight, interrupts_held, on_threads


def interrupt():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def each(blocks, keep):
    for block, _ in blocks:
        keep(block)


@pytest.mark.parametrize("after", [0.0, 0.001, 0.002, 0.005, 0.01, 0.02])
def test_an_interrupt_at_any_moment_loses_no_block_that_was_begun(after):
    begun, ended = [], []

    def work(block):
        begun.append(block)
        time.sleep(0.001)
        return block

    timer = threading.Timer(after, interrupt)

    def keep(block):
        if not ended:
            timer.start()
        ended.append(block)
        time.sleep(0.0005)

    with pytest.raises(KeyboardInterrupt):
        each(on_threads(work, 3)(iter(range(10**6))), keep)
    timer.join()
    assert sorted(ended) == sorted(begun)
    assert len(begun) < 10**6


def test_an_interrupt_after_the_last_block_still_interrupts():
    with pytest.raises(KeyboardInterrupt):
        each(
            on_threads(lambda block: block, 2)(iter(range(4))),
            lambda block: block == 3 and interrupt(),
        )


def test_a_second_interrupt_does_not_wait():
    release = threading.Event()

    def work(block):
        interrupt()
        time.sleep(0.05)
        interrupt()
        assert release.wait(20)

    with ThreadPoolExecutor(1) as pool:
        submit = partial(pool.submit, work)
        jobs = in_flight(iter([1]), 1, submit, lambda jobs: wait(jobs).done, lambda *job: job)
        with pytest.raises(KeyboardInterrupt):
            next(jobs)
        release.set()


def test_interrupts_are_held_only_from_pythons_own_handling():
    def own(number, frame):
        raise ZeroDivisionError

    before = signal.signal(signal.SIGINT, own)
    try:
        with pytest.raises(ZeroDivisionError), interrupts_held():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_after_work_interrupts_are_as_before():
    assert list(on_threads(lambda block: block, 2)(iter("ab")))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
