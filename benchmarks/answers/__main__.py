"""The command: see the package."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.answers.cases import KINDS
from benchmarks.answers.libraries import DEFAULT, LIBRARIES, PEERS, STANDARD, Library
from benchmarks.answers.measure import fill, finish, run, short
from benchmarks.answers.reference import Reference
from benchmarks.answers.tables import markdown
from benchmarks.race import write_part


def versions() -> dict[str, str]:
    """The versions of the libraries that can be found."""
    present = {}
    for name in ("torch", "transformers", "lxt", "flashtrace"):
        with suppress(PackageNotFoundError):
            present[name] = version(name)
    return present


def main(
    model: Annotated[str, typer.Option(help="A folder with a Llama and its tokenizer.")] = "",
    kinds: Annotated[str, typer.Option(help="Comma-separated kinds.")] = ",".join(KINDS),
    count: Annotated[int, typer.Option(help="Cases of each short kind.")] = 60,
    many: Annotated[int, typer.Option("--needles", help="Cases of each length of needles.")] = 4,
    lengths: Annotated[str, typer.Option(help="Tokens of needles.")] = "512,1024,2048,4096",
    peers: Annotated[list[Path] | None, typer.Option(help="Folder with libraries.")] = None,
    memory_limit: Annotated[float, typer.Option("--memory", help="GiB for a library.")] = 12.0,
    out: Annotated[Path | None, typer.Option(help="A JSON file; continued if it is there.")] = None,
    minutes: Annotated[float, typer.Option(help="Begin no further round after these.")] = 1e6,
    methods: Annotated[
        str, typer.Option(help="Methods, separated by a semicolon and a space.")
    ] = "",
    tables: Annotated[bool, typer.Option("--tables", help="Only print what `out` has.")] = False,
    page: Annotated[Path | None, typer.Option(help="A page to write the tables into.")] = None,
) -> None:
    """Runs the cases and prints the tables."""
    from wherefrom.storage.writing import write_text

    report: dict[str, Any] = {"versions": {}, "generated": {}, "cases": {}, "missing": {}}
    if out is not None and out.exists():
        report = json.loads(out.read_text(encoding="utf-8"))
    if tables:
        show(report, page)
        return
    if not Path(model).is_dir():
        raise typer.BadParameter(f"{model!r} is no folder with a model.", param_hint="--model")
    goals = {}
    for kind in kinds.split(","):
        if kind not in KINDS:
            raise typer.BadParameter(
                f"{kind!r} is none of {', '.join(KINDS)}.", param_hint="--kinds"
            )
        if kind == "needles":
            goals |= {f"needles {int(length)}": many for length in lengths.split(",")}
        else:
            goals[kind] = count
    sys.path += map(str, peers or ())  # at the end: no other version of torch comes in
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    import torch  # what libraries share is imported before the processes are forked
    import transformers.models.llama.modeling_llama  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import wherefrom.methods  # noqa: F401

    report["versions"] = versions()
    names = methods.split("; ") if methods else list(STANDARD)
    long = [name for name in names if name in (DEFAULT, *PEERS)] if not methods else names
    only = {kind: names if short(kind) else long for kind in goals}
    libraries = [Library(name=name) for name in LIBRARIES]
    try:
        for library in libraries:
            library.start(model, memory_limit)
            if library.problem is not None:
                report["missing"][library.name] = library.problem
            else:
                report["missing"].pop(library.name, None)
        torch.set_num_threads(1)
        reference = Reference(
            AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval(),
            AutoTokenizer.from_pretrained(model),
        )

        def save() -> None:
            if out is not None:
                write_text(out, json.dumps(report) + "\n")

        fill(libraries, reference, report, only, save)
        run(libraries, reference, goals, report, only, save, minutes)
        finish(reference, report, save)
    finally:
        for library in libraries:
            library.stop()
    show(report, page)


def show(report: dict[str, Any], page: Path | None) -> None:
    """Prints the tables, and writes them between the marks of a page."""
    text = markdown(report)
    typer.echo(text)
    if page is not None:
        write_part(page, "answers", text)


if __name__ == "__main__":
    typer.run(main)
