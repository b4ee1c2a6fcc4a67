"""The command line ``ident``. Slow imports wait inside the commands, so that help is quick."""

import ast
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from ident_utils.errors import IdentError

app = typer.Typer(
    help="Reproduce what 'On Identifiability in Transformers' claims, on pretrained models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Profile = Annotated[
    str | None,
    typer.Option(help="Name of a profile; without it IDENT_PROFILE, else base.", show_default=False),
]


def main() -> None:
    """Run the command line: 0 well, 1 a notebook failed, 2 wrong use, 130 interrupted."""
    try:
        code = app(standalone_mode=False)
    except IdentError as error:
        code = _say(str(error), 2)
    except typer.TyperException as error:  # a misspelt option, a word where a number belongs
        code = _say(f"{error.format_message()} (see --help)", 2) if error.format_message() else 2
    except (KeyboardInterrupt, typer.Abort):
        code = _say("interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str, code: int) -> int:
    print(f"ident: {message}", file=sys.stderr)
    return code


def _version(wanted: bool) -> None:
    if wanted:
        try:
            print(f"ident {metadata.version('ident-utils')}")
        except metadata.PackageNotFoundError:
            print("ident (not installed)")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


@app.command()
def reproduce(
    notebook: Annotated[
        list[str] | None, typer.Argument(help="Numbers or names; without any, all notebooks run.")
    ] = None,
    profile: Profile = None,
    model: Annotated[str | None, typer.Option(help="Another model: a name, a folder, or a name on the hub.")] = None,
    corpus: Annotated[str | None, typer.Option(help="Other texts: a name, or a file with one text a line.")] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed than 0.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long for the model.")] = False,
    timeout: Annotated[int | None, typer.Option(help="Seconds that one cell may take (3600).")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew what the cache holds already.")] = False,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask cluster that works on the texts.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes here that work on the texts, instead of a cluster.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("-j", "--jobs", help="Notebooks at a time; without it as many as processors and memory allow."),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="A parameter of the notebooks."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but what failed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object of JSON a line for every event.")] = False,
) -> int:
    """Run notebooks, keep the executed copies in runs/PROFILE, and say how each ended."""
    from ident_utils.display import choose_display
    from ident_utils.notebooks import select_notebooks
    from ident_utils.suite import reproduce as run

    if quiet and as_json:
        raise IdentError("give --quiet or --json, not both")
    parameters = dict(_parameter(text) for text in parameter or [])
    wanted = [path.stem for path in select_notebooks(notebook)]
    with choose_display(quiet=quiet, as_json=as_json) as display:
        interrupted = False
        try:
            run(
                wanted,
                profile=profile,
                model=model,
                corpus=corpus,
                seed=seed,
                parameters=parameters,
                truncate=truncate,
                timeout=timeout,
                jobs=jobs,
                fresh=fresh,
                scheduler=scheduler,
                workers=workers,
                on_start=display.start,
                on_event=display.show,
            )
        except KeyboardInterrupt:
            interrupted = True
    display.summarise()
    unfinished = [name for name in wanted if name not in {run.name for run in display.finished if run.ok}]
    if unfinished and len(unfinished) < len(wanted):
        print(f"ident: what is left can be run by naming it: {' '.join(unfinished)}", file=sys.stderr)
    if interrupted:
        return _say("interrupted; the results written so far stay", 130)
    return 1 if unfinished else 0


def _parameter(text: str) -> tuple[str, object]:
    """Split NAME=VALUE; a value that reads as a Python literal is one, any other is text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise IdentError(f"a parameter is given as NAME=VALUE, not as '{text}'")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


@app.command()
def verify(
    notebook: Annotated[
        list[str] | None,
        typer.Argument(help="Numbers or names; without any, results of all notebooks are drawn from."),
    ] = None,
    profile: Profile = None,
    share: Annotated[float, typer.Option(help="Share of the saved results that is computed once more.")] = 0.05,
    seed: Annotated[int | None, typer.Option(help="Seed of the draw; without it each draw is another.")] = None,
    digits: Annotated[int, typer.Option(help="Significant digits that must agree.", min=1, max=6)] = 6,
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", help="Notebooks at a time.")] = None,
) -> int:
    """Compute saved numbers drawn at random once more, without the cache, and compare: 1 where they differ."""
    from ident_utils.display import choose_display, print_compared, print_failures
    from ident_utils.verify import draw, write_report
    from ident_utils.verify import verify as run

    drawn = draw(profile, notebooks=notebook, share=share, seed=seed)
    print(drawn, flush=True)
    with choose_display() as display:
        found, runs = run(drawn, digits=digits, jobs=jobs, on_event=display.show)
    print_failures(runs, copies=False)
    print_compared(found)
    print(f"every number: {_shown(write_report(found, drawn.settings))}")
    return 0 if all(each.agrees for each in found) and all(each.ok for each in runs) else 1


@app.command("list")
def list_all() -> None:
    """Show the notebooks, claims, models, texts and profiles."""
    from ident_utils.reporting import print_inventory

    print_inventory()


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="A name of `ident list`, a folder, or a name on the hub.")],
) -> int:
    """Check that what can be traced through a model is what it computes."""
    from ident_utils.fidelity import check_encoder
    from ident_utils.models import load_encoder
    from ident_utils.reporting import print_checks

    encoder = load_encoder(model, check=False)
    print(encoder)
    checks = check_encoder(encoder)
    print_checks(model, checks)
    return 0 if all(found.holds for found in checks) else 1


@app.command("models")
def supported(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    write_readme: Annotated[
        bool, typer.Option("--write-readme", help="Put the table between its marks in README.md.")
    ] = False,
) -> None:
    """Show the supported families of models, each checked on a tiny random one."""
    from ident_utils.reporting import print_frame, write_readme_table
    from ident_utils.supported import supported_families, supported_table

    if write_readme:
        print(f"written: {_shown(write_readme_table(supported_table(), what='models'))}")
    elif markdown:
        print(supported_table())
    else:
        print_frame(supported_families(), "Families of models")


@app.command()
def look(
    text: Annotated[str, typer.Option(help="A text.")],
    pair: Annotated[str | None, typer.Option(help="A second text, which makes a pair with the first.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model than the profile's.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut what is too long for the model.")] = False,
    words: Annotated[str, typer.Option(help="Over a word's pieces: sum or mean of what they give.")] = "sum",
    profile: Profile = None,
) -> None:
    """Look at one text: its pieces and words, where they come from, and how free its attention weights are."""
    if words not in ("sum", "mean"):
        raise IdentError(f"--words must be sum or mean, not '{words}'")
    import torch

    from ident_utils.look import look_at
    from ident_utils.models import load_encoder
    from ident_utils.reporting import print_frame
    from ident_utils.settings import load_settings

    encoder = load_encoder(model or load_settings(profile).model, dtype=torch.float64)
    found = look_at(encoder, text if pair is None else (text, pair), truncate=truncate, how=words)
    print(encoder, *found.facts, sep="\n")
    print_frame(found.pieces, "By piece")
    print_frame(found.words, f"By word, {words} of the pieces' contributions")


@app.command()
def fetch(
    model: Annotated[
        list[str] | None, typer.Argument(help="Names of models; without any, those that the profile needs.")
    ] = None,
    profile: Profile = None,
) -> None:
    """Fetch models into the cache; those that are there already are left alone."""
    from ident_utils.locate import locate_model
    from ident_utils.settings import load_settings

    for name in model or load_settings(profile).models:
        print(f"{name}: {_shown(locate_model(name).folder)}")


def _shown(path: Path) -> str:
    """Return a path relative to the working directory where it lies in it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@app.command()
def verdict(
    profile: Profile = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    write_readme: Annotated[
        bool, typer.Option("--write-readme", help="Put the table between the marks in README.md.")
    ] = False,
) -> None:
    """Print the table of claims with what was measured and the verdicts."""
    from ident_utils.reporting import print_verdicts, write_readme_table
    from ident_utils.settings import load_settings

    name = load_settings(profile).profile
    if write_readme:
        from ident_utils.claims import verdict_table

        print(f"written: {_shown(write_readme_table(verdict_table(name)))}")
    elif markdown:
        from ident_utils.claims import verdict_table

        print(verdict_table(name))
    else:
        print_verdicts(name)


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove the results that are kept; models stay.")] = False,
) -> None:
    """Show what the cache holds, or clear its results."""
    from ident_utils.cache import cache_sizes, clear_results
    from ident_utils.paths import cache_root
    from ident_utils.reporting import print_cache

    if clear:
        print(f"{clear_results() / 1e6:.1f} MB of results removed from {_shown(cache_root())}")
    else:
        print_cache(cache_sizes(), _shown(cache_root()))


@app.command()
def figures(profile: Profile = None) -> None:
    """Draw the figures again from the saved numbers; no model is loaded."""
    from ident_utils.locking import only_run
    from ident_utils.redraw import redraw
    from ident_utils.settings import load_settings

    folder = load_settings(profile).folder
    with only_run(folder):
        drawn = dict(redraw(folder))
    for name, changed in drawn.items():
        if changed:
            print(f"changed: {_shown(folder / name)}")
    print(f"{len(drawn)} figures drawn again, {sum(drawn.values())} changed")


@app.command()
def explore(
    port: Annotated[int, typer.Option(help="Port of this machine that serves the page.", min=1, max=65535)] = 8866,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Serve the page without opening it.")] = False,
) -> None:
    """Serve a page that looks at a text of yours: attention, contributions, identity."""
    from ident_utils.explore.serving import serve_page

    serve_page(port, browser=not no_browser)


@app.command()
def report(
    profile: Profile = None,
    model: Annotated[str | None, typer.Option(help="The model that replaced the profile's.")] = None,
    corpus: Annotated[str | None, typer.Option(help="The corpus that replaced the profile's.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of the run.")] = 0,
) -> None:
    """Write the verdicts, figures and executed notebooks as pages for a browser."""
    from ident_utils.report import write_report
    from ident_utils.settings import load_settings

    print(f"written: {_shown(write_report(load_settings(profile, model=model, corpus=corpus, seed=seed)))}")


@app.command()
def publish(
    profile: Annotated[str, typer.Option(help="Whose copies are taken.")] = "base",
) -> None:
    """Put the outputs of the executed copies into notebooks/, ready to be committed."""
    from ident_utils.publishing import publish as put

    for path in put(profile):
        print(_shown(path))


@app.command()
def bench(
    name: Annotated[list[str] | None, typer.Argument(help="Names of benchmarks; without any, all.")] = None,
) -> None:
    """Time the fast algorithms beside the plain ones."""
    from ident_utils.bench import main as run

    run(name or [])


if __name__ == "__main__":
    main()
