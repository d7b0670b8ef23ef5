"""Run time and memory beside other libraries, written to docs/performance.md.

    python -m benchmarks.race [--path FOLDER …] [--lengths 128,512,2048] [--threads 1,2]
                              [--rounds 5] [--parts race,flow] [--out docs/performance.md]

Every contender runs in a process of its own, since some patch transformers globally. The processes
stay open and take turns: in each round every contender explains the same input once. Time is
processor time of the whole process (user and system, all threads), memory is the peak of the
resident set above that of the loaded model. Tables show the ratio of medians to plain
gradient × input by autograd with the logits of the last token only, and the least and most.
Libraries are used where they can be imported; `--path` adds folders to look in. Those that cannot
run are listed with the reason.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.processes import Worker, quiet, reason

BASELINE = "gradient × input, plain autograd"
STEPS = 8
MOST = 10.0  # a contender this many times slower than the baseline is not run on longer inputs
LONG = 1024  # beyond, half as many rounds
LLAMA, ENCODERS = "llama", ("bert", "vit")
Run = Callable[[], object]


def llama() -> Any:
    """A Llama of 24 layers, 512 wide, with 8 heads and 32,000 tokens; random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=512, intermediate_size=1376, num_hidden_layers=24, num_attention_heads=8,
        num_key_value_heads=8, vocab_size=32_000, max_position_embeddings=4096,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def ids_of(length: int) -> Any:
    """Random token ids, (1, length)."""
    import torch

    return torch.randint(5, 32_000, (1, length), generator=torch.Generator().manual_seed(1))


def gradient_times_input(model: Any) -> Callable[[int], Run]:
    """Gradient × input as anyone would write it, with the logits of the last token only."""
    import torch

    def prepare(length: int) -> Run:
        ids = ids_of(length)

        def run() -> Any:
            embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
            out = model(inputs_embeds=embedded, use_cache=False, logits_to_keep=1).logits[0, -1, 7]
            (gradient,) = torch.autograd.grad(out, embedded)
            return (gradient * embedded.detach()).sum(-1)

        return run

    return prepare


def of_lxt(patches: str) -> Callable[[int], Run]:
    """Gradient × input of the model class as LXT patches it, for this process."""
    import importlib

    from lxt.efficient import monkey_patch
    from transformers.models.llama import modeling_llama

    rules = importlib.import_module("lxt.efficient.models.llama")
    monkey_patch(modeling_llama, patch_map=getattr(rules, patches), verbose=False)
    model = llama()
    for parameter in model.parameters():  # as its examples do
        parameter.requires_grad_(False)
    return gradient_times_input(model)


def of_wherefrom(name: str, **settings: Any) -> Callable[[int], Run]:
    """A method of this library: scores and ledger."""
    import torch

    from benchmarks.cost import tokens
    from wherefrom.core.runner import ModelRunner
    from wherefrom.core.target import Case, Target
    from wherefrom.methods import method

    runner = ModelRunner(llama())

    def prepare(length: int) -> Run:
        inputs = tokens(1, length, 32_000, "mean")
        target = Target(torch.tensor([7]), position=torch.tensor([length - 1]))
        return lambda: method(name, **settings)(Case(runner, inputs, target))

    return prepare


def of_captum(name: str) -> Callable[[int], Run]:
    """InputXGradient on embeddings, or LayerIntegratedGradients on the embedding layer."""
    import torch
    from captum.attr import InputXGradient, LayerIntegratedGradients

    model = llama()

    def prepare(length: int) -> Run:
        ids = ids_of(length)
        if name == "InputXGradient":

            def score(embedded: Any) -> Any:
                out = model(inputs_embeds=embedded, use_cache=False, logits_to_keep=1)
                return out.logits[:, -1, 7]

            embedded = model.get_input_embeddings()(ids).detach()
            return lambda: InputXGradient(score).attribute(embedded.requires_grad_()).sum(-1)

        def score_ids(numbers: Any) -> Any:
            out = model(input_ids=numbers, use_cache=False, logits_to_keep=1)
            return out.logits[:, -1, 7]

        layer = LayerIntegratedGradients(score_ids, model.get_input_embeddings())
        return lambda: layer.attribute(
            ids, baselines=torch.zeros_like(ids), n_steps=STEPS, internal_batch_size=STEPS
        )

    return prepare


def word_tokenizer() -> Any:
    """A tokenizer whose words are t0 to t31999, for libraries that take texts only."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"t{number}": number for number in range(32_000)}
    backend = Tokenizer(models.WordLevel(words, unk_token="t0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "t0", "bos_token": "t1", "eos_token": "t2", "pad_token": "t3"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def prompt_of(length: int) -> str:
    """The text of `ids_of`."""
    return " ".join(f"t{number}" for number in ids_of(length)[0].tolist())


def of_inseq() -> Callable[[int], Run]:
    """Inseq's input × gradient of one generated token."""
    import inseq

    wrapped = inseq.load_model(llama(), "input_x_gradient", tokenizer=word_tokenizer())

    def prepare(length: int) -> Run:
        prompt = prompt_of(length)
        return lambda: wrapped.attribute(prompt, f"{prompt} t7", show_progress=False)

    return prepare


def of_flashtrace() -> Callable[[int], Run]:
    """FlashTrace of one generated token, with one hop."""
    from flashtrace import FlashTrace

    model = llama()
    model.set_attn_implementation("eager")  # it reads the attention weights
    tracer = FlashTrace(model, word_tokenizer())

    def prepare(length: int) -> Run:
        prompt = prompt_of(length)
        return lambda: tracer.trace(prompt=prompt, target="t7", output_span=(0, 0), hops=1)

    return prepare


def of_encoder(kind: str, name: str, **settings: Any) -> Callable[[int], Run]:
    """BERT-base on 8 × 128 tokens or ViT-B/16 on 4 images: plain, or a method of this library."""
    import torch

    from benchmarks.cost import bert_base, plain, plain_at_pixels, tokens, vit_base
    from wherefrom.core.runner import ModelRunner
    from wherefrom.core.target import Case, Target
    from wherefrom.inputs.image import ImageReader
    from wherefrom.methods import method

    target = Target(torch.zeros(8 if kind == "bert" else 4, dtype=torch.long))
    model = bert_base() if kind == "bert" else vit_base()
    runner = ModelRunner(model)
    if kind == "bert":
        inputs = tokens(8, 128)
        plainly: Run = lambda: plain(model, inputs, target)  # noqa: E731
    else:
        pixels = torch.randn(4, 3, 224, 224, generator=torch.Generator().manual_seed(1))
        reader = ImageReader(runner)
        inputs, runner = reader.batch([reader.read(image) for image in pixels]), reader.runner
        plainly = lambda: plain_at_pixels(model, pixels, target)  # noqa: E731

    def prepare(length: int) -> Run:
        if name == "plain":
            return plainly
        return lambda: method(name, **settings)(Case(runner, inputs, target))

    return prepare


CONTENDERS: dict[str, dict[str, Callable[[], Callable[[int], Run]]]] = {
    LLAMA: {
        BASELINE: lambda: gradient_times_input(llama()),
        "wherefrom lrp": lambda: of_wherefrom("lrp"),
        "wherefrom lrp (rules of CP-LRP)": lambda: of_wherefrom(
            "lrp", gate="frozen", attention=0, root=None
        ),
        "wherefrom attn_lrp": lambda: of_wherefrom("attn_lrp"),
        "wherefrom gradient_x_input": lambda: of_wherefrom("gradient_x_input"),
        "LXT CP-LRP": lambda: of_lxt("cp_LRP"),
        "LXT AttnLRP": lambda: of_lxt("attnLRP"),
        "Captum InputXGradient": lambda: of_captum("InputXGradient"),
        "Inseq input_x_gradient": of_inseq,
        "FlashTrace, 1 hop": of_flashtrace,
        f"wherefrom integrated_gradients, {STEPS} steps": lambda: of_wherefrom(
            "integrated_gradients", steps=STEPS
        ),
        f"Captum LayerIntegratedGradients, {STEPS} steps": lambda: of_captum(
            "LayerIntegratedGradients"
        ),
    },
    **{
        kind: {
            BASELINE: lambda kind=kind: of_encoder(kind, "plain"),  # type: ignore[misc]
            "wherefrom lrp": lambda kind=kind: of_encoder(kind, "lrp"),  # type: ignore[misc]
        }
        for kind in ENCODERS
    },
}
CONTENDERS["vit"]["wherefrom lrp (attention=0, the rule for texts)"] = lambda: of_encoder(
    "vit", "lrp", attention=0
)


def serve_runs(model: str, name: str, orders: Any) -> None:
    """A contender's process: gets (length, threads), answers with one measured run."""
    quiet()
    import torch

    try:
        prepare = CONTENDERS[model][name]()
    except Exception as error:
        orders.send({"error": reason(error)})
        return
    loaded = resident_peak()
    orders.send({})
    runs: dict[int, Run] = {}
    while (order := orders.recv()) is not None:
        length, threads = order
        torch.set_num_threads(threads)
        try:
            if length not in runs:
                runs[length] = prepare(length)
            began = time.process_time()
            runs[length]()
            seconds = time.process_time() - began
            orders.send({"seconds": seconds, "mebibytes": resident_peak() - loaded})
        except Exception as error:
            orders.send({"error": reason(error)})


def resident_peak() -> float:
    """The largest resident set of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@dataclass
class Contender(Worker):
    """A process that explains when it is asked to."""

    model: str = ""
    name: str = ""
    too_slow: bool = False

    def start(self) -> None:
        """Starts the process and waits until its model is there."""
        self.problem = self.begin(serve_runs, self.model, self.name).get("error")

    def run(self, length: int, threads: int) -> dict[str, float]:
        """The seconds and mebibytes of one run; empty where it cannot run."""
        answer = self.ask((length, threads))
        self.problem = answer.pop("error", None)
        return {} if self.problem else answer


def import_common() -> None:
    """What contenders share is imported before their processes are forked: no torch call is made.

    Libraries that patch others are imported by their own process alone.
    """
    import torch  # noqa: F401
    import transformers.models.bert.modeling_bert
    import transformers.models.llama.modeling_llama
    import transformers.models.vit.modeling_vit  # noqa: F401

    import wherefrom.methods  # noqa: F401


@dataclass
class Cell:
    """What was measured of one contender at one setting."""

    seconds: list[float]
    mebibytes: float

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return statistics.median(self.seconds)


Key = tuple[str, int, int]  # name, length, threads


def race(
    model: str, names: Iterable[str], lengths: list[int], threads: list[int], rounds: int
) -> tuple[dict[Key, Cell], dict[str, str]]:
    """The measurements, and why some contenders have none."""
    contenders = [Contender(model=model, name=name) for name in names]
    cells: dict[Key, Cell] = {}
    try:
        for contender in contenders:
            contender.start()
        for length in sorted(lengths):  # upwards: the peak of memory is that of the longest so far
            first = {c.name: c.run(length, threads[0]) for c in contenders if not c.too_slow}
            for count in threads:
                taken: dict[str, list[float]] = {}
                for _ in range(rounds if length <= LONG else max(2, rounds // 2)):
                    for contender in contenders:
                        answer = {} if contender.too_slow else contender.run(length, count)
                        if answer:
                            taken.setdefault(contender.name, []).append(answer["seconds"])
                for name, seconds in taken.items():
                    cells[name, length, count] = Cell(seconds, first[name].get("mebibytes", 0.0))
            for contender in contenders:
                cell = cells.get((contender.name, length, threads[0]))
                base = cells[BASELINE, length, threads[0]].median
                slow = cell is not None and cell.median > MOST * base
                contender.too_slow |= slow or f"{STEPS} steps" in contender.name
            for key, cell in cells.items():
                if key[1] == length:
                    measured = f"{cell.median:.2f} s, {cell.mebibytes:.0f} MiB"
                    typer.echo(f"{model} {key}: {measured}", err=True)
    finally:
        for contender in contenders:
            contender.stop()
    return cells, {c.name: c.problem for c in contenders if c.problem is not None}


def table(cells: dict[Key, Cell], names: Iterable[str], length: int, threads: int) -> list[str]:
    """Rows of a Markdown table for one setting."""
    base = cells[BASELINE, length, threads]
    rows = [
        "| contender | ratio | least to most | processor time | memory |",
        "|---|---|---|---|---|",
    ]
    for name in names:
        cell = cells.get((name, length, threads))
        if cell is None:
            continue
        least, most = (value / base.median for value in (min(cell.seconds), max(cell.seconds)))
        rows.append(
            f"| {name} | {cell.median / base.median:.2f} | {least:.2f} to {most:.2f} | "
            f"{cell.median:.2f} s | {cell.mebibytes:.0f} MiB |"
        )
    return rows


def verdicts(cells: dict[Key, Cell], lengths: list[int], threads: list[int]) -> list[str]:
    """What was aimed at on the Llama, and whether it was reached."""
    lines = []
    for count in threads:
        for length in lengths:
            ratio = {
                name: cells[key].median / cells[BASELINE, length, count].median
                for key in cells if key[1:] == (length, count) for name in [key[0]]
            }  # fmt: skip
            ours, theirs = ratio["wherefrom lrp"], ratio.get("LXT CP-LRP")
            same_rules = ratio.get("wherefrom lrp (rules of CP-LRP)")
            goal = {512: 0.80, 2048: 0.70}.get(length)
            parts = [f"`lrp` {ours:.2f}"]
            if goal is not None:
                parts.append(f"goal ≤ {goal:.2f} {'reached' if ours <= goal else 'missed'}")
            if theirs is not None:
                parts.append(f"LXT CP-LRP {theirs:.2f}, {'slower' if theirs > ours else 'faster'}")
            if same_rules is not None:
                parts.append(f"`lrp` with the rules of CP-LRP {same_rules:.2f}")
            lines.append(f"- length {length}, {count} thread(s): {'; '.join(parts)}.")
    return lines


def main(
    path: Annotated[list[Path] | None, typer.Option(help="Folder with libraries.")] = None,
    lengths: Annotated[str, typer.Option(help="Comma-separated lengths.")] = "128,512,2048",
    threads: Annotated[str, typer.Option(help="Comma-separated numbers of threads.")] = "1,2",
    rounds: int = 5,
    out: Path | None = None,
    only: Annotated[str | None, typer.Option(help="Comma-separated contenders.")] = None,
    models: Annotated[str, typer.Option(help="Encoders beside the Llama.")] = "bert,vit",
    parts: Annotated[str, typer.Option(help="race (all tables), flow (networkx).")] = "race,flow",
) -> None:
    """Runs the race and writes the tables."""
    sizes, counts = ([int(value) for value in text.split(",")] for text in (lengths, threads))
    sys.path += map(str, path or ())  # at the end: no other version of torch comes in
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that spin while they wait count as work
    import_common()
    chosen = only.split(",") if only else list(CONTENDERS[LLAMA])
    texts = {}
    if "race" in parts:
        names = [name for name in CONTENDERS[LLAMA] if name == BASELINE or name in chosen]
        cells, problems = race(LLAMA, names, sizes, counts, rounds)
        encoders = {
            kind: race(kind, CONTENDERS[kind], [0], counts, rounds)[0]
            for kind in ENCODERS
            if kind in models
        }
        texts["race"] = report(cells, problems, encoders, names, sizes, counts, rounds)
    if "flow" in parts:
        texts["flow"] = flow_report()
    for part, text in texts.items():
        typer.echo(text)
        if out is not None:
            write_part(out, part, text)


def flow_report(length: int = 64) -> str:
    """Attention flow to all tokens, beside networkx for one pair of them."""
    try:
        ours, theirs = flow_seconds(length)
    except ImportError as error:
        return f"networkx: {reason(error)}."
    return (
        f"Maximum flow through the attention maps of BERT-base, {length} tokens, of one pair of "
        f"places: `attention_flow` {1000 * ours:.1f} ms (the mean over all tokens), networkx "
        f"{1000 * theirs:.0f} ms, {theirs / ours:.0f} times as long. Processor time."
    )


def flow_seconds(length: int) -> tuple[float, float]:
    """The seconds for one pair of places, by this library and by networkx."""
    import networkx
    import torch

    from benchmarks.cost import bert_base, tokens
    from wherefrom.core.runner import ModelRunner
    from wherefrom.core.target import Case, Target
    from wherefrom.methods.attention import flows
    from wherefrom.methods.attention_maps import capture

    target = Target(torch.zeros(1, dtype=torch.long))
    seen = capture(Case(ModelRunner(bert_base()), tokens(1, length), target), gradients=False)
    steps = [weights.mean(1)[0].double() for weights in seen.maps]
    start = {number: rows[0].double() for number, rows in seen.start("auto").items()}
    flows(steps, seen.streams, start)  # the imports that it makes do not count
    began = time.process_time()
    flows(steps, seen.streams, start)
    ours = (time.process_time() - began) / length
    graph = networkx.DiGraph()
    for level, step in enumerate(steps):
        share = (step + torch.eye(length, dtype=step.dtype)) / (1 + step.sum(-1, keepdim=True))
        for i, row in enumerate(share.tolist()):
            for j, room in enumerate(row):
                graph.add_edge((level + 1, i), (level, j), capacity=room)
    began = time.process_time()
    networkx.maximum_flow_value(graph, (len(steps), int(start[0].argmax())), (0, 5))
    return ours, time.process_time() - began


def report(
    cells: dict[Key, Cell],
    problems: dict[str, str],
    encoders: dict[str, dict[Key, Cell]],
    names: list[str],
    lengths: list[int],
    threads: list[int],
    rounds: int,
) -> str:
    """All tables as Markdown."""
    lines = [
        f"Llama of 24 layers, 512 wide, 8 heads, 32,000 tokens, random weights, one text. {rounds} "
        f"rounds, {max(2, rounds // 2)} beyond {LONG:,} tokens; {_versions()}; {os.cpu_count()} "
        f"processors, load average {os.getloadavg()[0]:.1f} at the end.",
        "",
        *verdicts(cells, lengths, threads),
    ]
    for length in lengths:
        for count in threads:
            lines += ["", f"### {length:,} tokens, {count} thread(s)", ""]
            lines += table(cells, names, length, count)
    title = {"bert": "BERT-base, 8 × 128 tokens", "vit": "ViT-B/16, 4 images of 224 × 224"}
    for kind, measured in encoders.items():
        for count in threads:
            lines += ["", f"### {title[kind]}, {count} thread(s)", ""]
            lines += table(measured, CONTENDERS[kind], 0, count)
    missing = [f"- {name}: {reason}." for name, reason in problems.items()]
    missing += [
        f"- {name}: not on {length:,} tokens: {_why_not(name)}."
        for name in names
        for length in lengths
        if name not in problems and (name, length, threads[0]) not in cells
    ]
    if missing:
        lines += ["", "### Not run", "", *missing]
    return "\n".join(lines)


def _why_not(name: str) -> str:
    if f"{STEPS} steps" in name:
        return "compared at the shortest length only"
    return f"more than {MOST:.0f} times slower than the baseline on fewer"


def _versions() -> str:
    names = ("torch", "transformers", "lxt", "captum", "inseq", "flashtrace", "networkx")
    parts = []
    for name in names:
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(parts)


def write_part(path: Path, part: str, text: str) -> None:
    """Replaces what stands between the marks of a part."""
    page = path.read_text(encoding="utf-8")
    before, begin, rest = page.partition(f"<!-- {part}: begin -->")
    _, end, after = rest.partition(f"<!-- {part}: end -->")
    if not (begin and end):
        raise typer.BadParameter(f"{path} has no marks for {part} (<!-- {part}: begin --> … end).")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
