"""G collected on Ray is G collected here, bit for bit, whoever is killed."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from bank_helpers import ITEMS, QUERIES, TellingScorer, open_bank, random_pairs, same, straight
from crossknn.fitting.bank import ScoreBank
from crossknn.fitting.blocks import BLOCK
from crossknn.fitting.collect import collect
from crossknn.fitting.distributed import collect_on_ray

from crossknn.errors import InputError, MissingExtraError, ScorerError
from crossknn.scorers import OnnxCrossEncoder
from crossknn.types import Pairs


def words(count, length, seed):
    """`count` different texts of up to `length` words."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, length + 1, count)
    return [f"{' '.join(rng.choice(tiny_models.CONTENT, k))} {i}" for i, k in enumerate(lengths)]


@pytest.fixture(scope="module")
def ray():
    """Ray with two workers' CPUs, for all the tests of this file."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))  # for the workers
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    """A BERT of one layer with random weights, in the format of the ONNX models."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("onnx")
    from crossknn.models.export import export_model

    folder = tmp_path_factory.mktemp("model")
    made = tiny_models.tokenizer()
    config = transformers.BertConfig(
        vocab_size=made.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        num_labels=1,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(folder / "torch")
    names = {f"{t.strip('[]').lower()}_token": t for t in tiny_models.SPECIAL}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)
    fast.save_pretrained(folder / "torch")
    return export_model(folder / "torch", folder / "onnx")


def opener(folder: Path, notes: Path):
    """Opens the model, and notes which process did and how many pairs it was asked."""

    def open_model():
        class Noting(OnnxCrossEncoder):
            def score(self, pairs, queries, items, **limits):
                with (notes / str(os.getpid())).open("a") as file:
                    file.write(f"{len(pairs)}\n")
                return super().score(pairs, queries, items)

        (notes / str(os.getpid())).touch()
        return Noting(folder, threads=1, tokens_per_run=4096)

    return open_model


class OnlyHere:
    """What a worker cannot unpickle, since the module is not installed there."""

    def __init__(self, opened):
        self.opened = opened

    def __call__(self):
        return self.opened()

    def __reduce__(self):
        return import_module, ("no_module_of_the_workers",)


@pytest.mark.torch
@pytest.mark.slow
def test_a_killed_worker_changes_no_bit_of_100_000_pairs(ray, cross_encoder, tmp_path):
    queries, items = words(400, 5, seed=0), words(2000, 8, seed=1)
    pairs = random_pairs(100_000, n_queries=400, n=2000)
    notes = tmp_path / "notes"
    notes.mkdir()
    model = OnnxCrossEncoder(cross_encoder, threads=1, tokens_per_run=4096)
    options = {"fingerprint": model.fingerprint}
    killed = []

    def kill_one(done, total):
        if done > 0.4 * total and not killed:
            killed.append(int(min(path.name for path in notes.iterdir())))
            os.kill(killed[0], signal.SIGKILL)

    bank = ScoreBank.open(items, folder=tmp_path / "work", **options)
    report = collect_on_ray(
        bank, opener(cross_encoder, notes), queries, pairs, workers=2, progress=kill_one
    )
    assert (report.calls, report.failed, report.complete) == (100_000, 0, True)
    asked = {int(path.name): path.read_text().split() for path in notes.iterdir()}
    assert len(asked) == 3
    assert all(asked.values())
    assert sum(int(count) for counts in asked.values() for count in counts) <= 100_000 + BLOCK
    assert not list((tmp_path / "work").glob("block-*"))

    here = ScoreBank.open(items, **options)
    assert collect(here, model, queries, pairs, workers=2).complete
    expected = here.scores(queries)
    assert len(expected) == 100_000
    assert np.std(expected.score) > 0.01
    assert same(
        ScoreBank.open(items, folder=tmp_path / "work", **options).scores(queries), expected
    )


@pytest.mark.torch
def test_budget_failures_and_resumption_are_those_of_a_local_collection(ray, tmp_path):
    pairs, bank = random_pairs(5500), open_bank(tmp_path)
    first = collect_on_ray(bank, TellingScorer, QUERIES, pairs, workers=2, max_calls=8 * BLOCK)
    assert (first.calls, first.stopped_by) == (8 * BLOCK, "max_calls")
    steps = []
    rest = collect_on_ray(
        open_bank(tmp_path),
        TellingScorer,
        QUERIES,
        pairs,
        workers=2,
        progress=lambda *step: steps.append(step),
    )
    assert (rest.calls, rest.reused, rest.complete) == (5500 - 8 * BLOCK, 8 * BLOCK, True)
    assert steps[0] == (8 * BLOCK, 5500)
    assert steps[-1] == (5500, 5500)
    assert same(open_bank(tmp_path).scores(QUERIES), straight(pairs))

    more = Pairs(np.zeros(2, np.int64), np.array([4, 5]))
    bank = open_bank(tmp_path / "more")
    skipping = lambda: TellingScorer(skip=[ITEMS[4]])  # noqa: E731
    report = collect_on_ray(bank, skipping, QUERIES, more, workers=1)
    assert (report.calls, report.failed) == (2, 1)


@pytest.mark.torch
def test_what_goes_wrong_on_a_worker_is_said_here(ray, tmp_path):
    pairs, bank = random_pairs(600), open_bank(tmp_path)

    def ask(opened, **options):
        collect_on_ray(bank, opened, QUERIES, pairs, **{"workers": 1, **options})

    with pytest.raises(
        InputError, match=r"a worker opened .* other, but the scores are of telling"
    ):
        ask(lambda: TellingScorer("other"))
    with pytest.raises(InputError, match="there is no model folder"):
        ask("./no-such-model")

    def missing():
        raise MissingExtraError("this model", "torch")

    with pytest.raises(InputError, match=r"pip install 'crossknn\[torch\]'"):
        ask(missing)

    def infinite():
        scorer = TellingScorer()
        whole = scorer.score
        scorer.score = lambda *call: ((where, scores / 0) for where, scores in whole(*call))
        return scorer

    with np.errstate(divide="ignore"), pytest.raises(ScorerError, match=r"gave -?inf as the score"):
        ask(infinite)
    with pytest.raises(ScorerError, match="a worker failed: KeyError"):
        ask(lambda: {}["model"])

    def deadly():
        return TellingScorer(at=1, do=lambda: os.kill(os.getpid(), signal.SIGKILL))

    with pytest.raises(ScorerError, match="one block cost 4 of them their lives"):
        ask(deadly)
    with pytest.raises(ScorerError, match=r"could not start.*no_module_of_the_workers"):
        ask(OnlyHere(TellingScorer))
    with pytest.raises(InputError, match="2 CPUs, too few for 3 workers"):
        ask(TellingScorer, workers=3)
    with pytest.raises(InputError, match="workers is 0"):
        ask(TellingScorer, workers=0)
    assert len(bank) == 0


@pytest.mark.torch
def test_ray_is_quiet_from_start_to_end_even_if_a_worker_is_lost(tmp_path):
    pytest.importorskip("ray")
    from bank_helpers import run

    done = run(ALONE, tmp_path)
    assert done.stdout.split() == ["1200", "True", "True", "False"], done.stderr
    assert not done.stderr


ALONE = """
import sys
from bank_helpers import *
from crossknn.fitting.distributed import collect_on_ray
folder, pairs = Path(sys.argv[1]), random_pairs(1200)
lost = folder / "lost"
def die_once():
    if not lost.exists():
        lost.touch()
        die()
bank = open_bank(folder / "work")
opened = lambda: TellingScorer(at=2, do=die_once)
report = collect_on_ray(bank, opened, QUERIES, pairs, workers=2)
import ray
print(report.calls, lost.exists(), same(bank.scores(QUERIES), straight(pairs)), ray.is_initialized())
"""


def test_without_ray_or_a_folder_it_says_so(tmp_path, monkeypatch):
    arguments = TellingScorer, QUERIES, random_pairs(10)
    with pytest.raises(InputError, match="need a folder, which every node must see"):
        collect_on_ray(open_bank(), *arguments, workers=1)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"crossknn\[ray\]"):
        collect_on_ray(open_bank(tmp_path), *arguments, workers=1)
