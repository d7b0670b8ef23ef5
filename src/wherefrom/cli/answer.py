"""The command that explains an answer of a language model."""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherefrom.cli.options import Budget, Device, Dtype, Html, Json, MethodName, Plot, Settings
from wherefrom.cli.output import complain, exit_if_left_out, progress, say, say_styled, write_json
from wherefrom.cli.prompts import PromptLine, is_lines, read_lines, read_prompt, text_of
from wherefrom.cli.reading import check_plot, load, parsed
from wherefrom.errors import InputError

if TYPE_CHECKING:
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
            help="A text to continue, a text file, a .json file of chat messages, or a .jsonl file "
            "of several prompts."
        ),
    ] = None,
    passages: Annotated[
        list[Path] | None, typer.Option("--passages", help="A file with a passage; repeatable.")
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="A question, put into the chat template.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="An instruction to the model.")] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", help="An image, for a model that reads images; repeatable."),
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="The answer to explain. Default: the model generates one.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="Another answer to compare with.")] = None,
    of: Annotated[str, typer.Option(help="contrast, logit or logprob of each token.")] = "contrast",
    method: MethodName = "auto",
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of generated tokens.")] = 64,
    temperature: Annotated[
        float | None, typer.Option(help="Sample at this temperature. Default: greedy.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling reproducible.")] = None,
    through: Annotated[
        bool,
        typer.Option(
            "--through", help="Pass the relevance of earlier answer tokens on to the prompt."
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Also leave passages out: how far the probability drops, and a verdict on each "
            "sentence.",
        ),
    ] = False,
    json: Json = None,
    html: Html = None,
    plot: Plot = None,
    settings: Settings = None,
    budget: Budget = None,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Explain which parts of a prompt an answer comes from."""
    options: dict[str, Any] = {"method": method, "of": of, "against": against, **parsed(settings)}
    options |= {} if budget is None else {"budget": budget}
    sampling: dict[str, Any] = {"temperature": temperature, "seed": seed}
    if prompt is not None and is_lines(prompt):
        _refuse_single(passages, question, system, image, answer, html, plot)
        lines = read_lines(prompt)
        explainer = load(model, dtype=dtype, device=device)
        results = _answer_lines(explainer, lines, max_new_tokens, options, sampling)
        _show_lines([answer for answer in results if answer is not None], json, check, through)
        exit_if_left_out(results.count(None), len(lines), "prompts")
        return
    check_plot(plot)
    prompt_read = _prompt(prompt, passages, question, system)
    explainer = load(model, dtype=dtype, device=device)
    options["images"] = image or []
    if answer is None:
        result = explainer.generate(prompt_read, max_new_tokens, **sampling, **options)
    else:
        result = explainer.answer(prompt_read, answer, **options)
    if html is not None or plot is not None or through:
        with progress("explaining") as advance:
            result.rows(lambda done, count: advance(done, count, method))
    if html is not None:
        result.to_html(html)
    if plot is not None:
        result.plot("matrix", plot, multi_hop=through)
    if json is not None:
        data = _data(result, check, through)
        write_json(json, json_text.dumps(data, ensure_ascii=False, indent=1))
    if json is None or str(json) != "-":
        _show(result, check, through)


def _refuse_single(*options: Any) -> None:
    """Refuses options for a single prompt if --prompt names a file of several."""
    names = ("--passages", "--question", "--system", "--image", "--answer", "--html", "--plot")
    for name, value in zip(names, options, strict=True):
        if value:
            raise InputError(
                f"{name} applies to a single prompt, but --prompt names a file of several. Each of "
                "its lines can have a question, passages, a system message and an answer."
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
                "--passages and --system apply only to a text: put them into the chat messages."
            )
        question = read
    if question is None and not passages:
        raise InputError("there is no prompt. Pass --prompt, or --question and --passages.")
    texts = [Passage(text_of(path).strip(), path.stem) for path in passages or ()]
    return Prompt(question or "", texts, system or "")


def _show_lines(results: Sequence[Answer], json: Path | None, check: bool, through: bool) -> None:
    """Writes one line of JSON per result, or shows the results in the terminal."""
    if json is not None:
        data = (_data(result, check, through) for result in results)
        text = "\n".join(json_text.dumps(entry, ensure_ascii=False) for entry in data)
        write_json(json, text if str(json) == "-" else f"{text}\n")
    if json is None or str(json) != "-":
        for number, result in enumerate(results):
            if number:
                say("")
            _show(result, check, through)


def _answer_lines(
    explainer: Explainer,
    lines: Sequence[PromptLine],
    max_new_tokens: int,
    options: dict[str, Any],
    sampling: dict[str, Any],
) -> list[Answer | None]:
    """The answers to the prompts of a file, generated unless the file contains them.

    None where a prompt cannot be answered or explained, which is complained of by its number.
    """
    from wherefrom.core.runner import Rejected, split_on_failure

    def work(indices: Sequence[int]) -> list[Any]:
        some = [lines[i] for i in indices]
        prompts: Any = [line.prompt for line in some]
        others = [line.against or options["against"] for line in some]
        given = {**options, "against": others if any(others) else None}
        if lines[0].answer is None:
            return list(explainer.generate(prompts, max_new_tokens, **sampling, **given))
        answers: Any = [line.answer for line in some]
        return list(explainer.answer(prompts, answers, **given))

    device = explainer.runner.device
    results: dict[int, Any] = dict(
        split_on_failure(range(len(lines)), work, reject=True, device=device)
    )
    for i, result in sorted(results.items()):
        if isinstance(result, Rejected):
            complain(result.error.at(f"prompt {i + 1}"))
    answers = (results[i] for i in range(len(lines)))
    return [None if isinstance(answer, Rejected) else answer for answer in answers]


def _data(result: Answer, check: bool, through: bool) -> dict[str, Any]:
    data = result.to_dict()
    if any(part.kind == "passage" for part in result.parts):
        data["citations"] = [asdict(c) for c in result.citations(check, multi_hop=through)]
        data["verdicts"] = [asdict(verdict) for verdict in result.verdicts()] if check else []
    return data


def _show(result: Answer, check: bool, through: bool) -> None:
    from wherefrom.show.answer import terminal

    cited = any(part.kind == "passage" for part in result.parts)
    citations = result.citations(check, multi_hop=through) if cited else None
    verdicts = result.verdicts() if cited and check else ()
    say_styled(terminal(result, multi_hop=through, citations=citations, verdicts=verdicts))
