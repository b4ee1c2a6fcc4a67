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
    model: Annotated[str | None, typer.Option(help="Another model than the profile's.")] = None,
    corpus: Annotated[str | None, typer.Option(help="Another corpus than the profile's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed than 0.")] = None,
    timeout: Annotated[int | None, typer.Option(help="Seconds that one cell may take (3600).")] = None,
    jobs: Annotated[
        int | None,
        typer.Option("-j", "--jobs", help="Notebooks at a time; without it as many as processors and memory allow."),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="A parameter of the notebooks."),
    ] = None,
) -> int:
    """Run notebooks, keep the executed copies in runs/PROFILE, and say how each ended."""
    from ident_utils.notebooks import select_notebooks
    from ident_utils.reporting import NotebookBars, print_summary
    from ident_utils.suite import reproduce as run

    parameters = dict(_parameter(text) for text in parameter or [])
    wanted = [path.stem for path in select_notebooks(notebook)]
    with NotebookBars() as bars:
        interrupted = False
        try:
            run(
                wanted,
                profile=profile,
                model=model,
                corpus=corpus,
                seed=seed,
                parameters=parameters,
                timeout=timeout,
                jobs=jobs,
                on_event=bars.show,
            )
        except KeyboardInterrupt:
            interrupted = True
    print_summary(bars.finished, bars.seconds)
    unfinished = [name for name in wanted if name not in {run.name for run in bars.finished if run.ok}]
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


@app.command("list")
def list_all() -> None:
    """Show the notebooks, claims, models, texts and profiles."""
    from ident_utils.reporting import print_inventory

    print_inventory()


@app.command()
def fetch(
    model: Annotated[
        list[str] | None, typer.Argument(help="Names of models; without any, those that the profile needs.")
    ] = None,
    profile: Profile = None,
) -> None:
    """Fetch models into the cache; those that are there already are left alone."""
    from ident_utils.fetch import fetch_model
    from ident_utils.settings import load_settings

    for name in model or load_settings(profile).models:
        print(f"{name}: {_shown(fetch_model(name))}")


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
