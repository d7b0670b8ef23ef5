"""The conformance suite passes what keeps the contract, and names the claim that is broken."""

from dataclasses import dataclass, field

import pytest
import torch

from wherefrom import Method, Scores, method
from wherefrom.testing import check_method, tiny_classifier, untouched


@dataclass(frozen=True)
class Good(Method):
    """The number of a token among its text's, which needs no model."""

    name = "good"
    factor: float = 2.0

    def scores(self, case):
        places = torch.arange(case.batch.mask.shape[1], dtype=torch.float64)
        return Scores(self.factor * (places + 1) * case.batch.mask)


@dataclass(frozen=True)
class NaN(Good):
    """A score that is not finite."""

    def scores(self, case):
        values = super().scores(case).values
        values[0, 0] = torch.nan
        return Scores(values)


@dataclass(frozen=True)
class OnPadding(Good):
    """A score on padding."""

    def scores(self, case):
        return Scores(torch.ones(case.batch.mask.shape))


@dataclass(frozen=True)
class Dice(Good):
    """Another result each time."""

    rolls: list = field(default_factory=list)

    def scores(self, case):
        self.rolls.append(1)
        return Scores(len(self.rolls) * case.batch.mask.double())


@dataclass(frozen=True)
class Crowd(Good):
    """Scores that depend on the rest of the batch."""

    def scores(self, case):
        return Scores(len(case.batch) * case.batch.mask.double())


@dataclass(frozen=True)
class Narrow(Good):
    """One score for each sample."""

    def scores(self, case):
        return Scores(torch.ones(len(case.batch)))


@dataclass(frozen=True)
class Bare(Good):
    """A tensor in place of Scores."""

    def scores(self, case):
        return case.batch.mask.double()


@dataclass(frozen=True)
class Liar(Good):
    """Logits that are not the model's."""

    def scores(self, case):
        return Scores(case.batch.mask.double(), torch.ones(len(case.batch), 3, dtype=torch.float64))


@dataclass(frozen=True)
class Vandal(Good):
    """Changes a weight."""

    def scores(self, case):
        with torch.no_grad():
            next(case.runner.model.parameters()).add_(1.0)
        return super().scores(case)


@dataclass(frozen=True)
class Dropping(Good):
    """Sets another mode and leaves it."""

    def scores(self, case):
        case.runner.model.train()
        return super().scores(case)


@dataclass(frozen=True)
class OddPart(Good):
    """A part of another shape."""

    def scores(self, case):
        return Scores(case.batch.mask.double(), parts={"word": torch.ones(2)})


@dataclass(frozen=True)
class OddLine(Good):
    """A line of the ledger with one value for the whole batch."""

    def scores(self, case):
        return Scores(case.batch.mask.double(), lines={("bias", "bias"): torch.ones(1)})


@dataclass(frozen=True)
class Unwritable(Good):
    """Settings that JSON cannot hold."""

    def settings(self):
        return {"table": {1, 2}}


@dataclass(frozen=True)
class UnwritableLater(Good):
    """Settings that JSON can hold only before anything is explained."""

    calls: list = field(default_factory=list)

    def settings(self):
        self.calls.append(1)
        return {"calls": {1} if len(self.calls) > 1 else 1}


@dataclass
class Thawed(Good.__bases__[0]):
    """Not frozen, and without fields."""

    name = "thawed"

    def scores(self, case):
        return Scores(case.batch.mask.double())


class Silent(Method):
    name = "silent"

    def scores(self, case):
        return Scores(case.batch.mask.double())


@dataclass(frozen=True)
class Undescribed(Method):
    name = "undescribed"

    def scores(self, case):
        return Scores(case.batch.mask.double())


@dataclass(frozen=True)
class Nameless(Method):
    """Without a name."""

    def scores(self, case):
        return Scores(case.batch.mask.double())


def test_a_method_that_keeps_the_contract_passes():
    check_method(Good())
    check_method(method("lrp"))
    check_method(Good(), tiny_classifier(seed=3))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (NaN, "every score is finite"),
        (OnPadding, "padding scores zero"),
        (Dice, "a second run gives the same scores"),
        (Crowd, "a sample has the same scores alone and in a batch"),
        (Narrow, r"values have the shape \(batch, units\) = \(3, 7\), not \(3,\)"),
        (Bare, r"scores\(\) returns Scores, not Tensor"),
        (Liar, "the returned logits are the model's logits"),
        (Vandal, "the model's weights are as they were"),
        (Dropping, "the model's training flags are as they were"),
        (OddPart, "the part 'word' has the shape"),
        (OddLine, r"the line \('bias', 'bias'\) has a value for each sample"),
        (Unwritable, "its settings are JSON-serialisable"),
        (UnwritableLater, "an explanation is JSON"),
        (Thawed, "Thawed is frozen"),
        (Silent, "Silent is a dataclass"),
        (Undescribed, "Undescribed has a docstring"),
        (Nameless, "Nameless has a name"),
    ],
)
def test_a_broken_claim_is_named(broken, says):
    with pytest.raises(AssertionError, match=f"breaks its contract: .*{says}"):
        check_method(broken())


def touch_forward(model):
    model.classifier.forward = model.classifier.forward


def touch_attribute(model):
    model.bert.seen = 1


def touch_backward_hook(model):
    model.classifier.register_full_backward_pre_hook(lambda *args: None)


def touch_gradient(model):
    model.classifier.bias.grad = torch.ones_like(model.classifier.bias)


def touch_parameter(model):
    model.classifier.bias.mark = 1


def touch_config(model):
    model.config.mark = 1


def touch_and_restore(model):
    with torch.no_grad():
        model.classifier.bias.add_(0.0)


@pytest.mark.parametrize(
    ("touch", "says"),
    [
        (touch_forward, "attributes"),
        (touch_attribute, "attributes"),
        (touch_backward_hook, "hooks"),
        (touch_gradient, "gradients"),
        (touch_parameter, "attributes of parameters"),
        (touch_config, "config entries"),
        (touch_and_restore, "counts of writes"),
    ],
)
def test_untouched_names_what_was_touched(touch, says):
    model = tiny_classifier()
    with pytest.raises(AssertionError, match=f"the model's {says} are as"), untouched(model):
        touch(model)


def test_the_random_numbers_of_the_caller_go_on():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = tiny_classifier(1)
    assert torch.equal(torch.rand(3), expected)
    again, other = tiny_classifier(1).classifier, tiny_classifier(2).classifier
    assert torch.equal(first.classifier.weight, again.weight)
    assert not torch.equal(first.classifier.weight, other.weight)


def test_untouched_is_silent_about_a_model_that_is_as_it_was():
    model = tiny_classifier()
    with untouched(model):
        model(torch.tensor([[5, 6]]))
    with pytest.raises(AssertionError, match="hooks"), untouched(model):
        model.register_forward_hook(lambda *args: None)
