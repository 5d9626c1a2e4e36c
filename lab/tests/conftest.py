"""The helpers of the tests of crossknn are on the path."""

import signal
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"
sys.path[:0] = [str(TESTS / part) for part in ("", "index", "golden")]

# What a shell starts in the background ignores interrupts, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
