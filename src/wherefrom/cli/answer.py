"""The command that explains an answer of a language model."""

from __future__ import annotations

import json as json_text
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherefrom.cli.common import Device, Html, Json, Settings, load, progress, say, say_styled
from wherefrom.cli.explain import parsed
from wherefrom.errors import FileError, InputError
from wherefrom.storage.text_file import decoded, read_bytes
from wherefrom.storage.writing import write_text

if TYPE_CHECKING:
    from wherefrom.answers.answer import Answer
    from wherefrom.answers.prompt import PromptLike


def answer(
    model: Annotated[
        str, typer.Option("--model", "-m", help="smollm2, a folder, or a hub id.")
    ] = "smollm2",
    prompt: Annotated[
        str | None,
        typer.Option(help="A text, a file with one, or a .json file of chat messages."),
    ] = None,
    passages: Annotated[
        list[Path] | None, typer.Option("--passages", help="A file with a passage; repeatable.")
    ] = None,
    question: Annotated[str | None, typer.Option(help="What to answer from the passages.")] = None,
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
    method: Annotated[str, typer.Option(help="See `wherefrom methods`.")] = "lrp",
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer that is generated.")] = 64,
    temperature: Annotated[
        float | None, typer.Option(help="Sample at this temperature. Default: greedy.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    through: Annotated[
        bool, typer.Option("--through", help="Hand relevance on earlier answer tokens on.")
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
    device: Device = None,
) -> None:
    """Explain an answer of a language model: where it comes from."""
    asked = _prompt(prompt, passages, question, system)
    explainer = load(model, device=device)
    options: dict[str, Any] = {"method": method, "of": of, "against": against, **parsed(settings)}
    options["images"] = image or []
    if answer is None:
        result = explainer.generate(
            asked, max_new_tokens, temperature=temperature, seed=seed, **options
        )
    else:
        result = explainer.answer(asked, answer, **options)
    if html is not None or png is not None or through:
        with progress("explaining") as advance:
            result.rows(lambda done, count: advance(done, count, method))
    if html is not None:
        result.to_html(html)
    if png is not None:
        result.to_png(png, through=through)
    if json is not None:
        _write_json(result, json, check, through)
    if json is None or str(json) != "-":
        from wherefrom.show.answer import terminal

        cited = any(part.kind == "passage" for part in result.parts)
        citations = result.citations(check, through=through) if cited else None
        say_styled(terminal(result, through=through, citations=citations))


def _prompt(
    prompt: str | None, passages: list[Path] | None, question: str | None, system: str | None
) -> PromptLike:
    from wherefrom.answers.prompt import Passage, Prompt

    if prompt is not None:
        if passages or question or system:
            raise InputError(
                "pass either --prompt, or --question with --passages and --system, not both."
            )
        return _read_prompt(prompt)
    if question is None and not passages:
        raise InputError("there is no prompt. Pass --prompt, or --question and --passages.")
    texts = [Passage(_text_of(path).strip(), path.stem) for path in passages or ()]
    return Prompt(question or "", texts, system or "")


def _read_prompt(prompt: str) -> PromptLike:
    """A text as it is; a file's text without its last line break; messages of a .json file."""
    is_file = len(prompt) < 4096 and "\n" not in prompt and os.path.isfile(prompt)
    if not is_file:
        if prompt.endswith((".json", ".txt")):
            raise FileError(f"there is no file {prompt}.")
        return prompt
    text = _text_of(Path(prompt))
    if not prompt.endswith(".json"):
        return text.removesuffix("\n").removesuffix("\r")
    try:
        messages = json_text.loads(text)
    except ValueError as error:
        raise FileError(f"{prompt} is not JSON: {error}.") from error
    if not isinstance(messages, list):
        raise FileError(f"{prompt} must hold a list of chat messages.")
    return messages


def _text_of(path: Path) -> str:
    return decoded(path, read_bytes(path))


def _write_json(result: Answer, path: Path, check: bool, through: bool) -> None:
    data = result.to_dict()
    if any(part.kind == "passage" for part in result.parts):
        data["citations"] = [asdict(c) for c in result.citations(check, through=through)]
    text = json_text.dumps(data, ensure_ascii=False, indent=1)
    if str(path) == "-":
        say(text)
    else:
        write_text(path, text)
