"""Relevance place by place, held against the ledger and against the sums of the study."""

import numpy as np
import pytest

from wherefrom import Explainer
from wherefrom.studies.layer_profile import TABLES, course
from wherefrom.studies.unit_profile import unit_profile

TEXT = "the film is good, not dull."


@pytest.fixture
def explained(bert, wordpiece):
    explainer = Explainer(bert, wordpiece)
    return explainer, *explainer.prepare(TEXT)


def test_after_each_block_what_is_there_and_the_biases_above_are_the_output(explained):
    explainer, inputs, target = explained
    found = unit_profile(explainer.subject, inputs, target)
    lines = explainer(TEXT).ledger.lines
    names = list(found.units)
    assert len(names) == 2
    for at, name in enumerate(names):
        above = [line for line in lines if line.kind == "bias" and "embeddings" not in line.label]
        above = [line for line in above if line.label not in names[: at + 1]]
        total = found.units[name].sum() + found.others[name] + sum(x.value for x in above)
        assert total == pytest.approx(found.output, rel=1e-9)


def test_the_places_of_a_block_sum_to_what_the_study_finds(explained):
    explainer, inputs, target = explained
    for table in TABLES.values():
        found = unit_profile(explainer.subject, inputs, target, table)
        expected = course(explainer.subject, inputs, target, table).blocks
        for name, row in found.units.items():
            assert row.sum() + found.others[name] == pytest.approx(expected[name], rel=1e-9)


def test_after_the_last_block_all_is_at_the_place_that_the_head_reads(explained):
    explainer, inputs, target = explained
    last = list(unit_profile(explainer.subject, inputs, target).units.values())[-1]
    assert np.abs(last[1:]).max() < 1e-9 * np.abs(last[0])


def test_a_place_is_its_own_gradient_times_its_own_state(explained):
    """Moving one place's state by a share of itself moves the output by that share, linearly."""
    explainer, inputs, target = explained
    found = unit_profile(explainer.subject, inputs, target)
    model = explainer.subject.model
    (name, row) = next(reversed(found.units.items()))
    block = model.get_submodule(name)
    share = 1e-6

    def nudged(module, args, out):
        state = out[0] if isinstance(out, tuple) else out
        moved = state.clone()
        moved[0, 1] = moved[0, 1] * (1 + share)  # a place that the head does not read
        return (moved, *out[1:]) if isinstance(out, tuple) else moved

    before = target(explainer.subject.run(inputs.model_tensors()))
    hook = block.register_forward_hook(nudged)
    after = target(explainer.subject.run(inputs.model_tensors()))
    hook.remove()
    assert float((after - before).detach()) / share == pytest.approx(row[1], abs=1e-9)
