"""Relevance by unit agrees with the ledger and with the sums of the layer profile."""

import numpy as np
import pytest

from wherefrom import Explainer
from wherefrom.methods.propagation import Lrp
from wherefrom.studies.layer_profile import METHODS, relevance_sums, unit_profile

TEXT = "the film is good, not dull."


@pytest.fixture
def explained(bert, wordpiece):
    explainer = Explainer(bert, wordpiece)
    return explainer, *explainer._prepared(TEXT)


def test_relevance_after_each_block_and_the_biases_above_sum_to_the_output(explained):
    explainer, inputs, target = explained
    profile = unit_profile(explainer.runner, inputs, target, Lrp().resolved(inputs).table())
    lines = explainer(TEXT, "lrp").ledger.lines
    names = list(profile.units)
    assert len(names) == 2
    for at, name in enumerate(names):
        above = [line for line in lines if line.kind == "bias" and "embeddings" not in line.label]
        above = [line for line in above if line.label not in names[: at + 1]]
        total = profile.units[name].sum() + profile.others[name] + sum(x.value for x in above)
        assert total == pytest.approx(profile.output, rel=1e-9)


def test_the_units_of_a_block_sum_to_the_layer_profile(explained):
    explainer, inputs, target = explained
    for table in (method.resolved(inputs).table() for method in METHODS):
        profile = unit_profile(explainer.runner, inputs, target, table)
        expected = relevance_sums(explainer.runner, inputs, target, table).blocks
        for name, row in profile.units.items():
            assert row.sum() + profile.others[name] == pytest.approx(expected[name], rel=1e-9)


def test_after_the_last_block_all_relevance_is_where_the_head_reads(explained):
    explainer, inputs, target = explained
    last = list(
        unit_profile(
            explainer.runner, inputs, target, Lrp().resolved(inputs).table()
        ).units.values()
    )[-1]
    assert np.abs(last[1:]).max() < 1e-9 * np.abs(last[0])


def test_a_unit_has_its_gradient_times_its_state(explained):
    """Scaling the state of one unit by 1 + ε changes the output by ε times its relevance."""
    explainer, inputs, target = explained
    profile = unit_profile(explainer.runner, inputs, target, Lrp().resolved(inputs).table())
    model = explainer.runner.model
    (name, row) = next(reversed(profile.units.items()))
    block = model.get_submodule(name)
    share = 1e-6

    def scaled(module, args, out):
        state = out[0] if isinstance(out, tuple) else out
        moved = state.clone()
        moved[0, 1] = moved[0, 1] * (1 + share)  # the head does not read it
        return (moved, *out[1:]) if isinstance(out, tuple) else moved

    before = target(explainer.runner.run(inputs.model_tensors()))
    hook = block.register_forward_hook(scaled)
    after = target(explainer.runner.run(inputs.model_tensors()))
    hook.remove()
    assert float((after - before).detach()) / share == pytest.approx(row[1], abs=1e-9)
