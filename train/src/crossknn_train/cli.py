"""The command `crossknn-train`: train a model by a settings file, distil a cross-encoder, or export
a model to ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from crossknn import cli
from crossknn.cli import options as o
from crossknn.cli.output import answer, print_json, progress, say
from crossknn.errors import InputError, nearest

app = typer.Typer(
    name="crossknn-train",
    help="Train models and export them to ONNX.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

LATE = "LateInteractionSettings"
KINDS = {
    "cross-encoder": "CrossEncoderSettings",
    "dual-encoder": "DualEncoderSettings",
    **dict.fromkeys(("cmc", "poly", "som", "deformer", "mixencoder"), LATE),
}
SHIPPED = Path(__file__).parent / "configs"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    cli.main(arguments, __name__)


@app.command(
    "run",
    epilog=o.examples(
        "crossknn-train run cross-encoder --config text-emb-ce --out models/ce",
        "crossknn-train run cmc --config my-settings.toml --out models/cmc",
    ),
)
def train(
    kind: Annotated[str, typer.Argument(help=f"Kind of model: {', '.join(KINDS)}.")],
    config: Annotated[
        str,
        typer.Option(help="Settings: a TOML file, or a name listed by `crossknn-train configs`."),
    ],
    folder: Annotated[Path, typer.Option("--out", help="Folder to save the model in.")],
    json: o.AsJson = False,
) -> None:
    """Train a cross-encoder, a dual encoder or a late-interaction model.

    Run the same command again to resume after an interruption.
    """
    from crossknn_train import run, settings

    if kind not in KINDS:
        raise InputError(f"unknown kind of model {kind!r}: {nearest(kind, KINDS)}")
    path = _config(config)
    base = Path.cwd() if path.parent == SHIPPED else None  # the user's data are not in the package
    given = {"kind": kind} if KINDS[kind] == LATE else {}
    of = getattr(settings, KINDS[kind])
    chosen: Any = settings.read_settings(path, of, relative_to=base, given=given)
    o.check_path("--out", folder, folder=True)
    with progress("training", "steps") as report:
        fitted = run.train(chosen, folder, progress=report)
    made = {"steps": fitted.step, "best_step": fitted.best_step, "seconds": fitted.seconds}
    answer({"model": str(folder), "dev": fitted.best, **made}, json)


@app.command("configs", epilog=o.examples("crossknn-train configs", "crossknn-train configs cmc"))
def configs(
    name: Annotated[
        str | None, typer.Argument(help="Settings file to print, as a template for your own.")
    ] = None,
    json: o.AsJson = False,
) -> None:
    """List the settings files that come with the package, or print one."""
    if name is not None:
        text = _config(name).read_text(encoding="utf-8")
        print_json({"name": name, "text": text}) if json else say(text.rstrip("\n"))
        return
    titles = {
        path.stem: path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        for path in sorted(SHIPPED.glob("*.toml"))
    }
    answer(titles, json)


@app.command(
    "export",
    epilog=o.examples(
        "crossknn-train export cross-encoder/ms-marco-MiniLM-L6-v2 onnx/ce --precision int8",
        "crossknn-train export models/cmc onnx/cmc --kind late-interaction",
    ),
)
def export(
    model: Annotated[str, typer.Argument(help="Folder or hub name of the model.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write the ONNX model to.")],
    kind: Annotated[
        Literal["cross-encoder", "dual-encoder", "late-interaction"],
        typer.Option(help="Kind of model; CMC and Poly-encoder are of kind late-interaction."),
    ] = "cross-encoder",
    precision: Annotated[
        Literal["float32", "int8", "int8-weights"],
        typer.Option(
            help="int8: a quarter of the size, twice as fast, less exact; int8-weights: as small, "
            "nearly exact."
        ),
    ] = "float32",
    max_length: Annotated[
        int | None, typer.Option(help="Maximum number of input tokens; by default the model's own.")
    ] = None,
    license: Annotated[
        str, typer.Option(help="Licence to record in the folder.")
    ] = "see the model's card",
    json: o.AsJson = False,
) -> None:
    """Export MODEL to ONNX in FOLDER."""
    from crossknn_train.export import export_model

    about: Any = {"precision": precision, "max_length": max_length, "license": license}
    written = export_model(model, folder, kind, **about)
    size = sum(path.stat().st_size for path in written.glob("*.onnx*"))
    answer({"model": str(written), "precision": precision, "bytes": size}, json)


@app.command(
    "distill",
    epilog=o.examples(
        "crossknn-train distill docs.index --queries train-queries.jsonl --out models/distilled"
    ),
)
@o.grouped
def distill(
    index: o.Folder,
    *,
    queries: Annotated[Path, typer.Option(help="Training queries.")],
    out: Annotated[Path, typer.Option(help="Folder to save the trained dual encoder in.")],
    start: Annotated[
        str | None,
        typer.Option(help="Dual encoder to start from; by default the index's."),
    ] = None,
    per: Annotated[int, typer.Option(min=2, help="Items to score per query.")] = 100,
    limits: o.LimitOptions,
    scorer: o.ScorerOptions,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Train a dual encoder on the cross-encoder's scores, and store its item vectors in INDEX.

    Run the same command again to resume after an interruption: no pair is scored twice.
    """
    from crossknn.fitting.fit import fit
    from crossknn.index.item_index import ItemIndex
    from crossknn_train.distillation import Distill

    o.check_path("--out", out, folder=True)
    opened = ItemIndex.load(index)
    given = scorer.open(workers=o.threads(limits.workers))
    texts, method = o.read_queries(queries).texts, Distill(out=out, start=start)
    how: dict[str, Any] = {"per": per, "limits": limits.limits(), "seed": seed}
    made = fit(opened, given, texts, method, progress=progress, **how)
    summary = {"name": made.name, "model": str(out), "held_out": made.vectors.details}
    answer({**summary, "calls": made.collected.calls, "notes": made.notes}, json)


def _config(name: str) -> Path:
    """Return the settings file at this path, or of this name in the package."""
    path, shipped = Path(name), {path.stem: path for path in SHIPPED.glob("*.toml")}
    if path.is_file() or name in shipped:
        return path if path.is_file() else shipped[name]
    raise InputError(
        f"there is no settings file {name}: neither at this path nor in the package "
        f"({nearest(name, shipped)})"
    )
