"""`crossknn train cross-encoder|dual-encoder|cmc|...`: train a model by a settings file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossknn.cli.common import AsJson, err, out, print_json, progress
from crossknn.errors import InputError, MissingExtraError, nearest
from crossknn.types import LateKind

if TYPE_CHECKING:
    from crossknn.training.loop import Fitted

NAME = "train"

app = typer.Typer(
    help="Train a cross-encoder, a dual encoder, or a model that compares candidates.",
    no_args_is_help=True,
)

Config = Annotated[
    str,
    typer.Option("--config", help="A TOML file, or the name of one that comes with the package."),
]
Folder = Annotated[
    Path | None, typer.Option("--out", help="Where to put the model; goes on where it stopped.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Time a few steps, say hours and memory, train nothing.")
]


@app.command("cross-encoder")
def cross_encoder(
    config: Config, out: Folder = None, dry_run: DryRun = False, json: AsJson = False
) -> None:
    """Train a cross-encoder. Stop it any time: the same command goes on."""
    _train("CrossEncoderSettings", config, out, dry_run, json)


@app.command("dual-encoder")
def dual_encoder(
    config: Config, out: Folder = None, dry_run: DryRun = False, json: AsJson = False
) -> None:
    """Train a dual encoder. Stop it any time: the same command goes on."""
    _train("DualEncoderSettings", config, out, dry_run, json)


_LATE: dict[LateKind, str] = {
    "cmc": "CMC: query and candidates together, in two transformer layers",
    "poly": "a Poly-encoder: learned codes read the query's tokens, each item is one vector",
    "som": "Sum-of-max: every query token finds its best item token",
    "deformer": "a Deformer: the upper layers read query and item together",
    "mixencoder": "a MixEncoder: item vectors read the query's tokens, in one layer",
}


def _late(kind: LateKind) -> Callable[..., None]:
    def command(
        config: Config, out: Folder = None, dry_run: DryRun = False, json: AsJson = False
    ) -> None:
        _train("LateInteractionSettings", config, out, dry_run, json, {"kind": kind})

    return command


for _kind, _what in _LATE.items():
    app.command(_kind, help=f"Train {_what}. Stop it any time: the same command goes on.")(
        _late(_kind)
    )


@app.command("configs")
def configs(
    name: Annotated[str | None, typer.Argument(help="Print this one, to change a copy.")] = None,
) -> None:
    """List the settings files that come with the package, or print one of them."""
    if name is not None:
        print(_config(name).read_text(encoding="utf-8"), end="")
        return
    for path in _shipped():
        first = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        out.print(f"{path.stem}: {first}", soft_wrap=True)


def _train(
    settings_of: str,
    config: str,
    folder: Path | None,
    dry_run: bool,
    as_json: bool,
    given: Mapping[str, str] | None = None,
) -> None:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("training", "torch") from error
    from crossknn.training import run, settings

    path = _config(config)
    base = Path.cwd() if path in _shipped() else None  # the user's data are not in the package
    wanted: Any = settings.read_settings(
        path, getattr(settings, settings_of), relative_to=base, given=given
    )
    if dry_run:
        _say_estimate(run.estimate(wanted), as_json)
        return
    if folder is None:
        raise InputError("--out is missing: name the folder for the model")
    with progress("training", "steps") as report:
        fitted = run.train(wanted, folder, progress=report)
    _draw(folder / run.RUN)
    _say(fitted, folder, as_json)


def _say_estimate(found: Any, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        print_json(asdict(found))
        return
    out.print(
        f"{found.train_queries:,} train queries, {found.dev_queries:,} dev queries, "
        f"{found.steps:,} steps of {found.seconds_per_step} s in {found.precision}: "
        f"{found.hours} hours beside mining and evaluations, {found.gigabytes} GB; "
        f"{found.longer_than_the_window:,} texts are longer than the window",
        soft_wrap=True,
    )


def _say(fitted: Fitted, folder: Path, as_json: bool) -> None:
    if as_json:
        summary = {"model": str(folder), "steps": fitted.steps, "best_step": fitted.best_step}
        print_json(summary | {"dev": fitted.best, "seconds": round(fitted.seconds, 1)})
        return
    measures = ", ".join(f"{name} {value:.4f}" for name, value in fitted.best.items())
    out.print(
        f"{folder}: {fitted.steps} steps; best on dev after step {fitted.best_step}: {measures}",
        soft_wrap=True,
    )


def _draw(run: Path) -> None:
    try:
        from crossknn.plots import training_curve

        training_curve(run / "log.jsonl", run / "loss.png")
    except MissingExtraError as error:
        err.print(f"no loss plot: {error}", soft_wrap=True)


def _config(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    shipped = {path.stem: path for path in _shipped()}
    if name in shipped:
        return shipped[name]
    raise InputError(
        f"there is no settings file {name}, nor one of that name in the package "
        f"({nearest(name, shipped)})"
    )


def _shipped() -> list[Path]:
    import crossknn

    return sorted((Path(crossknn.__file__).parent / "training" / "configs").glob("*.toml"))
