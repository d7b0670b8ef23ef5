"""Does the ledger of `lrp` close on the families that read images with texts?

    python -m benchmarks.seeing_families [--only clip,llava] [--out docs/families.md]

As `benchmarks.families`: tiny random models in float64, the same bounds. Units are the patches of
an image and the tokens of a text, on one ledger; of models that compare images with texts, the
patches of each of two images. Most processors need torchvision or files: the models are given
tensors as their processors would make them, with as many image tokens as the model says it needs.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from torch import Tensor
from transformers.models.auto import modeling_auto as auto

from benchmarks.families import SEEING
from benchmarks.family_rows import Casts, Row, limited, reason, verdict
from benchmarks.tiny import _CONFIG, config, prepared
from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, Layout, ModelRunner
from wherefrom.core.target import Case, Target
from wherefrom.inputs.patches import cells, find_layout, layout_of
from wherefrom.methods.propagation import Lrp

COMPARE = auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES
WRITE = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
SIDE, PATCH = 32, 8
GRID = SIDE // PATCH
IMAGE = 90  # the token that stands for a part of an image
WORDS = [17, 33, 8, 60]
_SIZES: dict[str, Any] = {
    "depth": 2, "embed_dim": 32, "out_hidden_size": 32, "projection_dim": 32, "image_size": SIDE,
    "patch_size": PATCH, "spatial_merge_size": 2, "temporal_patch_size": 1, "window_size": SIDE,
    "fullatt_block_indexes": [1], "image_token_id": IMAGE, "image_token_index": IMAGE,
    "max_position_embeddings": 128, "deepstack_visual_indexes": [0], "mm_tokens_per_image": 4,
    "image_grid_pinpoints": [[SIDE, SIDE]], "vision_feature_layer": -1, "num_query_tokens": 4,
    "patch_embed_hidden_size": 3 * PATCH * PATCH, "intermediate_layers_indices": [0],
}  # fmt: skip
# how many places an image needs, as a model's error says it
_NEEDED = re.compile(
    r"(?:features:? |value tensor of shape \[|Got (?:\d+ image tokens .* but )?)(\d+)"
)
_ROPE = {
    "rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2],
    "partial_rotary_factor": 1.0,
}  # fmt: skip
_TOWER = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
# Sizes that hang together in one family's own way, by model type or by class.
_OWN: dict[str, dict[str, Any]] = {
    "AlignModel": {"projection_dim": 80},
    "Blip2ForImageTextRetrieval": {
        "qformer_config": {
            **_TOWER,
            "encoder_hidden_size": 32,
            "use_qformer_text_input": True,
            "vocab_size": 120,
        },
        "image_text_hidden_size": 32,
    },
    "aria": {"projector_patch_to_query_dict": {GRID * GRID: 4}},
    "granite4_vision": {
        "deepstack_layer_map": [[0, 0]],
        "downsample_rate": "2/4",
        "spatial_target_layers": [1],
        "use_spatial_sampling": False,
        "vision_config": {
            "model_type": "clip_vision_model",
            **_TOWER,
            "hidden_size": 64,
            "image_size": SIDE,
            "patch_size": PATCH,
        },
        "qformer_config": {**_TOWER, "hidden_size": 64, "encoder_hidden_size": 64},
    },
    "instructblipvideo": {"video_token_id": IMAGE},
    "kimi_k25": {"projection_hidden_size": 32},
    "molmo2": {"image_patch_id": IMAGE},
    "muse_glimmer": {"out_hidden_size": 128, "projector_hidden_size": 32},
    "muse_spark": {"out_hidden_size": 128, "projector_hidden_size": 32},
    "nemotron_h_omni": {"vision_hidden_size": 32, "projector_hidden_size": 32},
    "kosmos-2": {"latent_query_num": 4},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 95},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 95},
    "vision-encoder-decoder": {
        "encoder": {"model_type": "vit", **_TOWER, "image_size": SIDE, "patch_size": PATCH},
        "decoder": {
            "model_type": "bert",
            **_TOWER,
            "vocab_size": 120,
            "is_decoder": True,
            "add_cross_attention": True,
        },
    },
    "vipllava": {"vision_feature_layers": [-1, -2]},
}


def special(settings: Any, taken: dict[int, int]) -> None:
    """Gives every special token of a config and of its parts an id that the vocabulary has."""
    for name, value in list(vars(settings).items()):
        if isinstance(value, _CONFIG):
            special(value, taken)
        elif re.search(r"_token_(id|index)$", name) and value not in (None, 0, 1, 2, 3, IMAGE):
            setattr(settings, name, taken.setdefault(value, 91 + len(taken)))


def settings_of(kind: Any) -> Iterator[Any]:
    """Configs to try: as they come, and with a rotary embedding in three parts for images."""
    plain = kind.config_class
    own = _OWN.get(kind.__name__) or _OWN.get(plain.model_type, {})
    texts = getattr(plain(), "text_config", None)
    sees = getattr(plain, "sub_configs", {}).get("vision_config")
    if sees is not None and getattr(plain(), "vision_config", 0) is None:
        own = {"vision_config": config(sees, _SIZES), **own}
    yield config(plain, _SIZES, **own)
    name, rotary = "rope_parameters", getattr(texts, "rope_parameters", None)
    if not hasattr(texts, name) and hasattr(texts, "rope_scaling"):  # before transformers 5
        name, rotary = "rope_scaling", texts.rope_scaling or {}
    if isinstance(rotary, dict):
        texts = config(type(texts), _SIZES, **{name: {**rotary, **_ROPE}})
        yield config(plain, _SIZES, **{**own, "text_config": texts})


def tiny(kind: Any, compares: bool) -> tuple[Any, dict[str, Tensor]]:
    """A tiny random model of a class that reads images with texts, and what it takes."""
    errors = []
    for settings in settings_of(kind):
        try:
            special(settings, {})
            made = prepared(kind, settings=settings)
            try:
                return made, fitting(made, compares)
            except ValueError as error:
                if "without overflow" not in str(error):  # of a mask that float32 alone can have
                    raise
                return made, fitting(made.float(), compares)
        except Exception as error:
            errors.append(reason(error))
    raise ValueError("; ".join(errors))


def forms(made: Any) -> Iterator[dict[str, Tensor]]:
    """Ways in which models take an image: as it is, among several, as rows of patches."""
    chance = torch.Generator().manual_seed(5)
    image = torch.randn(1, 3, SIDE, SIDE, generator=chance, dtype=torch.float64)
    takes = inspect.signature(made.forward).parameters
    rows = torch.nn.functional.unfold(image, PATCH, stride=PATCH).mT[0]  # (patches, features)
    patches = rows.reshape(-1, 3, PATCH, PATCH)
    size = torch.tensor([[SIDE, SIDE]])
    grid = torch.tensor([[1, GRID, GRID]])
    ones = torch.ones(1, len(rows), dtype=torch.long)
    axis = torch.arange(GRID)
    corners = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1).reshape(1, -1, 2)
    if "image_grid_thw" in takes:
        for pixels in (rows, rows.repeat(1, 2), patches, patches[None]):
            yield {"pixel_values": pixels, "image_grid_thw": grid}
        more = {"image_merge_sizes": torch.tensor([2])}
        yield {"pixel_values": rows, "image_grid_thw": grid, **more}
    if "image_sizes" in takes:
        yield {"pixel_values": image, "image_sizes": size}
        yield {"pixel_values": image[:, None].repeat(1, 2, 1, 1, 1), "image_sizes": size}
    if "spatial_shapes" in takes:
        shapes = {"spatial_shapes": grid[:, 1:], "pixel_attention_mask": ones}
        yield {"pixel_values": rows[None], **shapes}
    if "image_position_ids" in takes or "diffusion" in made.config.model_type:
        places = {"image_position_ids": corners}
        yield {"pixel_values": rows[None], **places}
        yield {"pixel_values": rows[None].repeat(1, 1, 9), **places}  # of patches three by three
    if "image_grid_hw" in takes:
        yield {"pixel_values": rows, "image_grid_hw": grid[:, 1:]}
    if "image_token_pooling" in takes:  # which patches each token of the image is made of
        pooled = torch.arange(len(rows)).reshape(2, 2, 2, 2).transpose(1, 2).reshape(4, 4)
        crops = {"image_grids": torch.tensor([[2, 2, 0, 0]]), "image_num_crops": torch.tensor([1])}
        yield {"pixel_values": rows[None], "image_token_pooling": pooled, **crops}
    if "target_sizes" in takes:
        yield {"pixel_values": image, "target_sizes": grid[:, 1:]}
    if "aspect_ratio_ids" in takes:
        tiles = {"aspect_ratio_ids": torch.ones(1, 1, dtype=torch.long)}
        tiles["aspect_ratio_mask"] = torch.tensor([[[1, 0, 0, 0]]])
        yield {"pixel_values": image[:, None, None].repeat(1, 1, 4, 1, 1, 1), **tiles}
    if "pixel_values_videos" in takes and "pixel_values" not in takes:
        yield {"pixel_values_videos": image[:, None].repeat(1, 2, 1, 1, 1)}
    if "image_patches" in takes:
        yield {"image_patches": rows[None]}
    if "flattened_patches" in takes:
        numbered = torch.cat([corners.to(rows) + 1, rows[None]], -1)
        yield {"flattened_patches": numbered, "attention_mask": ones}
        yield {"flattened_patches": numbered}
    yield {"pixel_values": image}
    yield {"pixel_values": image[:, None]}


def text(places: int) -> dict[str, Tensor]:
    """Ids with so many places of an image, and a mask of ones; without any, an end."""
    ids = torch.tensor([[1, *[IMAGE] * places, *WORDS] if places else [1, *WORDS, 2]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def beside(made: Any, ids: Tensor) -> dict[str, Tensor]:
    """What some models want beside ids and pixels, by the names that they have for it."""
    takes = inspect.signature(made.forward).parameters
    words = torch.tensor([WORDS])
    is_image = ids == IMAGE
    known = {
        "mm_token_type_ids": is_image.long(),
        "token_type_ids": torch.zeros_like(ids),
        "qformer_input_ids": words,
        "qformer_attention_mask": torch.ones_like(words),
        "image_embeds_position_mask": is_image.long(),
        "image_attention_mask": torch.ones(1, ids.shape[1], 1, dtype=torch.long),
        "high_res_pixel_values": torch.ones(1, 3, SIDE, SIDE, dtype=torch.float64),
        "bbox": torch.ones(1, ids.shape[1], 4, dtype=torch.long),
        "cross_attention_mask": torch.ones(1, ids.shape[1], 1, 4, dtype=torch.long),
    }
    given = {name: tensor for name, tensor in known.items() if name in takes}
    if made.config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.tensor([[1, 7]])
    return given


def fitting(made: Any, compares: bool) -> dict[str, Tensor]:
    """Tensors that the model takes; it says itself how many places an image needs."""
    errors = []
    for pixels in forms(made):
        places = 0 if compares else 1
        for _ in range(4):
            words = text(places)
            given = {**words, **beside(made, words["input_ids"]), **pixels}
            given = {
                name: value.to(made.dtype) if value.is_floating_point() else value
                for name, value in given.items()
            }
            try:
                with torch.no_grad():
                    made(**given)
            except Exception as error:
                needed = _NEEDED.search(str(error))
                shape = next(tuple(value.shape) for value in pixels.values())
                errors.append(f"{[*pixels]} {shape} {reason(error)}")
                if needed is None or int(needed[1]) < places:
                    break
                # some count numbers, not rows
                places = int(needed[1]) // (32 if int(needed[1]) == places else 1)
            else:
                return given
    raise ValueError("; ".join(errors))


_PIXELS = ("pixel_values", "pixel_values_videos", "image_patches", "flattened_patches")


def explained(made: Any, given: Mapping[str, Tensor]) -> tuple[Any, float, bool, int]:
    """The scores of the largest logit behind the text, the output, casts, and patches."""
    name = next(name for name in _PIXELS if name in given)
    runner = ModelRunner(made, forward=_last_rows(made), restores=True)
    others = {key: tensor for key, tensor in given.items() if key != name}
    with torch.no_grad(), Casts() as casts:
        logits = runner.run(given)
    row = logits[0, -1] if logits.ndim == 3 else logits[0]
    layout = _layout(runner, name, given[name], others)
    fields = [key for key in ("input_ids", "decoder_input_ids") if key in given]
    tokens = [str(token) for key in fields for token in given[key][0].tolist()]
    patches = [f"patch {number + 1}" for number in range(layout.units)]
    units = tuple(Unit(label) for label in (*tokens, *patches))
    inputs = Batch(
        tensors={**others, name: layout.split(given[name])},
        fields=(*fields, name),
        units=(units,),
        mask=torch.ones(1, len(units), dtype=torch.bool),
        texts=(None,),
        layout=layout,
        noun="unit",
        missing="mean",
    )
    last = torch.tensor([logits.shape[1] - 1]) if logits.ndim == 3 else None
    target = Target(row.abs().argmax()[None], position=last)
    scores = Lrp()(Case(runner, inputs, target))
    assert scores.logits is not None
    narrow = casts.narrower or made.dtype == torch.float32
    return scores, float(target(scores.logits)), narrow, layout.units


def _layout(runner: ModelRunner, name: str, pixels: Tensor, others: Mapping[str, Tensor]) -> Layout:
    """The patches as the model cuts them; of a video, squares of each frame."""
    if name != "pixel_values_videos":
        return find_layout(runner, name, pixels, others)
    one = layout_of(cells(SIDE, SIDE, GRID, GRID).expand(3, SIDE, SIDE))
    frames = pixels.shape[1]
    starts = torch.arange(frames).unsqueeze(1) * one.units * one.features
    places = (starts + one.places).flatten()
    return Layout(tuple(pixels.shape), frames * one.units, one.features, places, stacked=False)


def _last_rows(made: Any) -> Any:
    """How a model is run whose outputs are not those of the text's places alone, at the end."""
    if made.config.model_type not in ("git", "diffusion_gemma", "videoprism"):
        return None

    def forward(model: Any, inputs: Any) -> Tensor:
        out = model(**inputs)
        if "video_embeds" in out:  # its scores are shares among all videos: of one, always 1
            compared: Tensor = out.video_embeds @ out.text_embeds.T
            return compared
        logits: Tensor = out.logits
        return logits[:, -inputs["input_ids"].shape[1] :]

    return forward


NOT_SEEN = {
    "chameleon": "turns an image into ids of a code book: no gradient comes from the pixels",
    "emu3": "turns an image into ids of a code book: no gradient comes from the pixels",
    "inkling_mm_model": "could not be built small: the sizes of its vision layers follow from each "
    "other",
    "evolla": "reads proteins, not images",
    "fast_vlm": "needs the library timm, which needs torchvision",
    "gemma3n": "needs the library timm, which needs torchvision",
    "mistral4": "is the text model of another family, and takes no image",
    "perception_lm": "needs the library timm, which needs torchvision",
    "pi0": "gives the movements of a robot, from its state",
}
OPEN = {
    "ovis2": "makes an image into probabilities of visual words, which the rule for attention "
    "holds constant, so that patches have no part; with `attention=0.25` they have one, and it "
    "closes",
}


def measure(family: str, name: str, compares: bool) -> Row:
    """Builds a family, explains an output by patches and words, and looks at the residual."""
    if not compares and family in NOT_SEEN:
        return Row(family, name, "not run", note=NOT_SEEN[family])
    try:
        with limited(180):
            made, given = tiny(getattr(transformers, name), compares)
            scores, output, casts, patches = explained(made, given)
    except Exception as error:
        return Row(family, name, "not run", note=reason(error))
    residual = abs(output - sum(float(line.sum()) for line in scores.lines.values())) / abs(output)
    words, pixels = scores.values[0, :-patches], scores.values[0, -patches:]
    reach = min(float(part.abs().max()) for part in (words, pixels)) / abs(output)
    closes = verdict(residual, casts, reach)
    named = f"{len(words)} words, {patches} patches"
    return Row(family, name, closes, residual, casts, named, patches)


def cases() -> list[tuple[str, str, bool]]:
    """Every family, its class, and whether it compares images with texts or writes about them."""
    found = []
    for names, compares in ((COMPARE, True), (WRITE, False)):
        for family, kind in sorted(names.items()):
            found.append((family, kind if isinstance(kind, str) else kind[0], compares))
    return found


def table(rows: list[tuple[Row, bool]]) -> str:
    """The families that read images with texts as a section in Markdown."""
    lines = [
        SEEING, "",
        f"`python -m benchmarks.seeing_families`, transformers {transformers.__version__}, torch "
        f"{torch.__version__.partition('+')[0]}. All families of "
        "`AutoModelForZeroShotImageClassification`, which compare an image with a text, and of "
        "`AutoModelForImageTextToText`, which write about it. One output is explained by the "
        "patches of the image and the words of the text on one ledger. The models are given "
        "tensors, as their processors would make them; five of them are also "
        "[tested with their processors](answers.md#models-that-see). The bounds are those above.",
        "",
    ]  # fmt: skip
    for compares, what in ((True, "compare"), (False, "write")):
        own = [row for row, kind in rows if kind == compares]
        run = [row for row in own if row.verdict != "not run"]
        closed = sum(row.verdict == "closed" for row in run)
        lines += [
            f"Of those that {what}, the ledger of `lrp` closes on **{closed} of {len(own)} "
            f"families**; {len(run)} could be run.", "",
            "| family | class | verdict | residual | casts to float32 | units |",
            "|---|---|---|---|---|---|",
        ]  # fmt: skip
        lines += [
            f"| {row.family} | {row.kind} | {row.verdict} | {row.residual:.1e} | "
            f"{'yes' if row.casts else ''} | {row.note} |"
            for row in run
        ]
        opened = [row.family for row in run if row.verdict == "open"]
        if opened:
            lines += ["", "Open:", ""]
            lines += [f"- `{name}` {OPEN.get(name, 'is not understood yet')}." for name in opened]
        if len(run) < len(own):
            lines += ["", "Not run:", "", "| family | class | reason |", "|---|---|---|"]
            lines += [
                f"| {row.family} | {row.kind} | {row.note.replace('|', '/')} |"
                for row in own
                if row.verdict == "not run"
            ]
        lines += [""]
    return "\n".join(lines)


def main(
    only: Annotated[str | None, typer.Option(help="Comma-separated family names.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the section here.")] = None,
) -> None:
    """Prints the section."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    wanted = only.split(",") if only else None
    rows = []
    for family, name, compares in cases():
        if wanted is None or family in wanted:
            row = measure(family, name, compares)
            rows.append((row, compares))
            shown = "" if row.residual is None else f"{row.residual:.1e}"
            typer.echo(f"{row.verdict:8} {family:28} {shown:9} {row.note}")
    if out is not None:
        before = out.read_text("utf-8").partition(SEEING)[0].rstrip()
        out.write_text(f"{before}\n\n{table(rows)}", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
