"""The command that explains an answer of a language model."""

from __future__ import annotations

import json as json_text
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherefrom.cli.options import Device, Dtype, Html, Json, MethodName, Settings
from wherefrom.cli.output import progress, say, say_styled, write_json
from wherefrom.cli.prompt_files import Line, is_lines, read_lines, read_prompt, text_of
from wherefrom.cli.reading import load, parsed
from wherefrom.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wherefrom.answers.answer import Answer
    from wherefrom.answers.prompt import PromptLike
    from wherefrom.explainer import Explainer


def answer(
    model: Annotated[
        str, typer.Option("--model", "-m", help="smollm2, a folder, or a hub id.")
    ] = "smollm2",
    prompt: Annotated[
        str | None,
        typer.Option(
            help="A text to continue, a file with one, a .json file of chat messages, or a .jsonl "
            "file of many prompts."
        ),
    ] = None,
    passages: Annotated[
        list[Path] | None, typer.Option("--passages", help="A file with a passage; repeatable.")
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="A question, asked by the chat template.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="An instruction to the model.")] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", help="A picture, for a model that sees; repeatable."),
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="The answer to explain. Default: the model generates one.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="Another answer to compare with.")] = None,
    of: Annotated[str, typer.Option(help="contrast, logit or logprob of each token.")] = "contrast",
    method: MethodName = "lrp",
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer that is generated.")] = 64,
    temperature: Annotated[
        float | None, typer.Option(help="Sample at this temperature. Default: greedy.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    through: Annotated[
        bool,
        typer.Option(
            "--through", help="Hand the relevance of earlier answer tokens on to the prompt."
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Also leave each passage out, and measure the drop.")
    ] = False,
    json: Json = None,
    html: Html = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Draw answer tokens × prompt words here.")
    ] = None,
    settings: Settings = None,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Explain an answer of a language model: where it comes from."""
    options: dict[str, Any] = {"method": method, "of": of, "against": against, **parsed(settings)}
    sampling: dict[str, Any] = {"temperature": temperature, "seed": seed}
    if prompt is not None and is_lines(prompt):
        _refuse_single(passages, question, system, image, answer, html, png)
        lines = read_lines(prompt)
        explainer = load(model, dtype=dtype, device=device)
        results = _answer_lines(explainer, lines, max_new_tokens, options, sampling)
        _show_lines(results, json, check, through)
        return
    asked = _prompt(prompt, passages, question, system)
    explainer = load(model, dtype=dtype, device=device)
    options["images"] = image or []
    if answer is None:
        result = explainer.generate(asked, max_new_tokens, **sampling, **options)
    else:
        result = explainer.answer(asked, answer, **options)
    if html is not None or png is not None or through:
        with progress("explaining") as advance:
            result.rows(lambda done, count: advance(done, count, method))
    if html is not None:
        result.to_html(html)
    if png is not None:
        result.to_png(png, multi_hop=through)
    if json is not None:
        data = _data(result, check, through)
        write_json(json, json_text.dumps(data, ensure_ascii=False, indent=1))
    if json is None or str(json) != "-":
        _show(result, check, through)


def _refuse_single(*given: Any) -> None:
    """Refuses what is for one prompt beside a file of many."""
    names = ("--passages", "--question", "--system", "--image", "--answer", "--html", "--png")
    for name, value in zip(names, given, strict=True):
        if value:
            raise InputError(
                f"{name} is for one prompt, and --prompt names a file of many. Its lines may have "
                "a question, passages, a system message and an answer of their own."
            )


def _prompt(
    prompt: str | None, passages: list[Path] | None, question: str | None, system: str | None
) -> PromptLike:
    from wherefrom.answers.prompt import Passage, Prompt

    if prompt is not None:
        if question:
            raise InputError("pass either --prompt or --question, not both.")
        read = read_prompt(prompt)
        if not passages and not system:
            return read
        if not isinstance(read, str):
            raise InputError(
                "chat messages have their passages and instructions in them: --passages and "
                "--system are for a text."
            )
        question = read
    if question is None and not passages:
        raise InputError("there is no prompt. Pass --prompt, or --question and --passages.")
    texts = [Passage(text_of(path).strip(), path.stem) for path in passages or ()]
    return Prompt(question or "", texts, system or "")


def _show_lines(results: Sequence[Answer], json: Path | None, check: bool, through: bool) -> None:
    """A line of JSON for each, or each as it is shown alone."""
    if json is not None:
        data = (_data(result, check, through) for result in results)
        text = "\n".join(json_text.dumps(each, ensure_ascii=False) for each in data)
        write_json(json, text if str(json) == "-" else f"{text}\n")
    if json is None or str(json) != "-":
        for number, result in enumerate(results):
            if number:
                say("")
            _show(result, check, through)


def _answer_lines(
    explainer: Explainer,
    lines: Sequence[Line],
    max_new_tokens: int,
    options: dict[str, Any],
    sampling: dict[str, Any],
) -> list[Answer]:
    """The answers to the prompts of a file, generated unless it has them."""
    prompts: Any = [line.prompt for line in lines]
    others = [line.against or options["against"] for line in lines]
    options = {**options, "against": others if any(others) else None}
    answers: Any = [line.answer for line in lines]
    results: Any
    if lines[0].answer is None:
        results = explainer.generate(prompts, max_new_tokens, **sampling, **options)
    else:
        results = explainer.answer(prompts, answers, **options)
    return list(results)


def _data(result: Answer, check: bool, through: bool) -> dict[str, Any]:
    data = result.to_dict()
    if any(part.kind == "passage" for part in result.parts):
        data["citations"] = [asdict(c) for c in result.citations(check, multi_hop=through)]
    return data


def _show(result: Answer, check: bool, through: bool) -> None:
    from wherefrom.show.answer import terminal

    cited = any(part.kind == "passage" for part in result.parts)
    citations = result.citations(check, multi_hop=through) if cited else None
    say_styled(terminal(result, multi_hop=through, citations=citations))
