"""`crossknn export`: a torch model as an ONNX folder that the base install runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from crossknn.cli.common import AsJson, Seed, out, print_json, progress
from crossknn.errors import InputError

NAME = "export"


def command(
    model: Annotated[str, typer.Argument(help="A model's folder or hub name.")],
    folder: Annotated[Path, typer.Argument(help="Where to write the ONNX folder.")],
    kind: Annotated[
        Literal["cross-encoder", "dual-encoder", "late-interaction"],
        typer.Option(help="What the model is; late-interaction: CMC and its rivals."),
    ] = "cross-encoder",
    precision: Annotated[
        Literal["float32", "int8"], typer.Option(help="int8 is smaller and faster, and less exact.")
    ] = "float32",
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of an input; the model's own limit by default.")
    ] = None,
    every_layer: Annotated[
        bool, typer.Option("--every-layer", help="int8 in every layer: smallest.")
    ] = False,
    license: Annotated[
        str, typer.Option(help="The licence to record.")
    ] = "see the model's own card",
    items: Annotated[
        Path | None, typer.Option(help="With --queries: compare with the model on these items.")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="With --items: compare with the model on these queries.")
    ] = None,
    template: Annotated[str, typer.Option(help="How an item's text is made.")] = "{title}\\n{text}",
    check_queries: Annotated[int, typer.Option(help="Queries to compare on.")] = 20,
    check_items: Annotated[int, typer.Option(help="Random items of each query.")] = 100,
    seed: Seed = 0,
    json: AsJson = False,
) -> None:
    """Export MODEL to FOLDER, and say how near the two are on real pairs.

    Mentions of a ZESHEL file are marked; its items need --template "{title} [ENT] {text}".
    """
    from crossknn.models.export import export_model

    if (items is None) != (queries is None):
        raise InputError("--items and --queries come together: both are needed to compare")
    if items is not None and kind != "cross-encoder":
        raise InputError(f"--items and --queries compare cross-encoders, not a {kind}")
    settings: dict[str, Any] = {"keep_float": ()} if every_layer else {}
    written = export_model(
        model,
        folder,
        kind,
        precision=precision,
        max_length=max_length,
        license=license,
        **settings,
    )
    size = sum(path.stat().st_size for path in written.glob("*.onnx*"))
    summary: dict[str, Any] = {"model": str(written), "precision": precision, "bytes": size}
    if items is not None and queries is not None:
        found = _compare(model, written, items, queries, template, check_queries, check_items, seed)
        summary["agreement"] = found
    if json:
        print_json(summary)
        return
    out.print(f"{written}: {precision}, {size / 1e6:.1f} MB", soft_wrap=True)
    if "agreement" in summary:
        found = summary["agreement"]
        out.print(
            f"against {model} on {found['pairs']:,} pairs of {found['queries']} queries: Spearman "
            f"per query {found['spearman_mean']:.5f} (lowest {found['spearman_lowest']:.5f}), "
            f"largest difference {found['largest_difference']:.3g}, where scores spread by "
            f"{found['spread']:.3g}",
            soft_wrap=True,
        )


def _compare(
    model: str,
    written: Path,
    items: Path,
    queries: Path,
    template: str,
    n_queries: int,
    n_items: int,
    seed: int,
) -> dict[str, Any]:
    from crossknn.data.reading import read_items, read_queries
    from crossknn.evaluation.measures import agreement
    from crossknn.scorers import CrossEncoder

    texts = read_items(items, template=template.replace("\\n", "\n")).texts
    asked = read_queries(queries, limit=n_queries).texts
    with progress("comparing", "pairs") as report:
        found = agreement(
            CrossEncoder(model),
            CrossEncoder(written),
            asked,
            texts,
            per_query=n_items,
            seed=seed,
            progress=report,
        )
    return asdict(found)
