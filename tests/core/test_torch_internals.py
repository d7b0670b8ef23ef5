"""All private names of torch that the library uses behave as it expects."""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import wherefrom
from benchmarks.tiny import model as tiny
from wherefrom import Explainer
from wherefrom.core import torch_internals

HOME = Path(wherefrom.__file__).parent
INTERNALS = Path(torch_internals.__file__)
# of objects of torch, wherever they come from; "torch._…" itself is found by its first name
_ATTRIBUTES = {
    "_C", "_nn", "_base", "_is_view", "_modules", "_forward_hooks", "_forward_pre_hooks",
    "_backward_hooks", "_global_forward_hooks", "_global_forward_pre_hooks", "_orig_mod",
    "_compiled_call_impl", "_torchdynamo_orig_callable", "_forward_cls", "_parameters",
    "_buffers", "_version",
}  # fmt: skip


def private_names(path):
    """The private names of torch in a file: attributes, imports, and names in strings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES:
            yield node.attr
        elif isinstance(node, ast.Constant) and node.value in _ATTRIBUTES:
            yield node.value
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            owner = ast.unparse(node.value)
            if owner.split(".")[0] == "torch" and not node.attr.startswith("__"):
                yield f"{owner}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (part for part in parts if part.startswith("_"))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                yield from (p for p in parts if parts[0] == "torch" and p.startswith("_"))


def test_one_file_uses_private_names_of_torch():
    users = {
        str(path.relative_to(HOME)): sorted(names)
        for path in HOME.rglob("*.py")
        if path != INTERNALS and (names := set(private_names(path)))
    }
    assert users == {}
    assert {"_C", "_base", "_modules", "_forward_cls"} <= set(private_names(INTERNALS))


class Counting(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


def test_calls_without_function_modes_reach_no_mode():
    x = torch.ones(2)
    with Counting() as mode:
        with torch_internals.without_function_modes():
            torch.add(x, x)
        assert mode.calls == 0
        torch.add(x, x)
        assert mode.calls == 1


def test_function_modes_are_listed_from_the_outermost():
    assert torch_internals.function_modes() == []
    with Counting() as outer, Counting() as inner:
        assert torch_internals.function_modes() == [outer, inner]


def test_the_state_of_function_modes_is_read_and_set():
    read, set_to = torch_internals.function_state, torch_internals.set_function_state
    with Counting() as mode:
        enabled = read()
        with torch_internals.without_function_modes():
            disabled = read()
            set_to(enabled)
            torch.ones(2)
            assert mode.calls == 1
            set_to(disabled)
            torch.ones(2)
            assert mode.calls == 1
        torch.ones(2)
        assert mode.calls == 2


def test_native_functions_are_those_that_modes_see():
    seen = []

    class Recording(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Recording():
        nn.functional.gelu(torch.ones(2))
        nn.functional.linear(torch.ones(2), torch.ones(2, 2))
    natives = torch_internals.NATIVE_FUNCTIONS
    assert natives.gelu in seen
    assert natives.linear in seen


@pytest.mark.parametrize("tells", [True, False])
def test_hooks_on_saved_tensors_are_told_and_popped(tells, monkeypatch):
    if tells and not torch_internals.TELLS_SAVED_HOOKS:
        pytest.skip(f"torch {torch.__version__} does not tell its hooks")
    monkeypatch.setattr(torch_internals, "TELLS_SAVED_HOOKS", tells)
    seen = {"outer": [], "inner": []}
    outer, inner = (lambda t, n=name: seen[n].append(t.item()) or t for name in seen)
    assert torch_internals.saved_tensors_pack() is None
    x = torch.tensor(2.0, requires_grad=True)
    torch_internals.push_saved_tensors_hooks(outer, lambda t: t)
    torch_internals.push_saved_tensors_hooks(inner, lambda t: t)
    assert torch_internals.saved_tensors_pack() is inner
    x.sin()
    torch_internals.pop_saved_tensors_hooks()
    assert torch_internals.saved_tensors_pack() is outer
    y = x.sin()
    torch_internals.pop_saved_tensors_hooks()
    assert torch_internals.saved_tensors_pack() is None
    x.sin()
    y.backward()
    assert seen == {"outer": [2.0], "inner": [2.0]}
    assert x.grad == torch.cos(x)


def test_hooks_that_were_listed_but_not_pushed_are_taken_off_the_list(monkeypatch):
    monkeypatch.setattr(torch_internals, "TELLS_SAVED_HOOKS", False)
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        torch_internals._PUSHED.packs.append(print)  # the state after an interrupt
        torch_internals.pop_saved_tensors_hooks()
        assert torch_internals.saved_tensors_pack() is None
        seen.clear()
        torch.ones(1, requires_grad=True).sin()
        assert len(seen) == 1  # the caller's own hooks are still there


def test_a_view_knows_its_base():
    base = torch.zeros(2, 3)
    assert torch_internals.view_base(base.view(6)) is base
    assert torch_internals.view_base(base) is None
    assert torch_internals.view_base(base + 1) is None


def test_submodules_can_be_read():
    module = nn.Sequential(nn.Identity(), nn.ReLU())
    module.register_module("empty", None)
    assert list(torch_internals.submodules(module)) == ["0", "1", "empty"]
    assert torch_internals.submodules(nn.ReLU()) == {}


@pytest.mark.parametrize(
    ("register", "expected"),
    [
        ("register_forward_hook", (1, 0, 0)),
        ("register_forward_pre_hook", (0, 1, 0)),
        ("register_full_backward_hook", (0, 0, 1)),
    ],
)
def test_hooks_are_counted(register, expected):
    module = nn.Identity()
    assert torch_internals.hook_counts(module) == (0, 0, 0)
    getattr(module, register)(lambda *arguments: None)
    assert torch_internals.hook_counts(module) == expected


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook"])
def test_hooks_on_all_modules_are_in_the_registries(kind):
    def count():
        registries = torch_internals.global_hook_registries().values()
        return sum(len(each) for each in registries if isinstance(each, dict))

    before = count()
    hook = getattr(nn.modules.module, f"register_module_{kind}")(lambda *arguments: None)
    assert count() > before
    hook.remove()
    assert count() == before


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        return 2 * gradient


def test_the_node_of_an_autograd_function_names_its_class():
    x = torch.ones(2, requires_grad=True)
    assert torch_internals.function_class(type(Doubled.apply(x).grad_fn)) is Doubled
    added = type((x + 1).grad_fn)
    assert torch_internals.function_class(added) is added


def test_what_a_batched_tensor_stands_for_is_seen():
    seen = []

    def double(x):
        seen.append(torch_internals.stacked(x).clone())
        return 2 * x

    rows = torch.arange(6.0).reshape(3, 2)
    torch.vmap(double, in_dims=1)(rows)
    assert torch.equal(seen[0], rows.T)
    assert torch.equal(torch_internals.stacked(rows), rows[None])


@pytest.mark.parametrize("masked", [False, True])
def test_log_sums_of_attention_are_those_of_its_scores(rng, masked):
    query, key, value = (torch.randn(2, 3, 5, 4, generator=rng, dtype=torch.float64) for _ in "qkv")
    mask = torch.rand(2, 1, 5, 5, generator=rng) < 0.7
    mask[..., 0] = True
    mask[0, 0, 2] = False  # a fully masked query
    settings = {"attn_mask": mask} if masked else {"is_causal": True}
    out, log_sums = torch_internals.attention_with_log_sums(query, key, value, **settings)
    attended = nn.functional.scaled_dot_product_attention(query, key, value, **settings)
    torch.testing.assert_close(out, attended, equal_nan=True)
    seen = mask if masked else torch.ones(5, 5, dtype=torch.bool).tril()
    scores = (query @ key.mT / 2).masked_fill(~seen, -torch.inf)
    expected = scores.logsumexp(-1)
    expected = expected.masked_fill(expected == -torch.inf, 0.0)
    torch.testing.assert_close(log_sums, expected)


def test_half_precision_has_no_log_sums(rng):
    half = [torch.randn(1, 2, 5, 4, generator=rng).bfloat16() for _ in "qkv"]
    assert torch_internals.attention_with_log_sums(*half)[1] is None


def refuses(error):
    def kernel(*args, **kwargs):
        raise error("changed in this version of torch")

    return kernel


@pytest.mark.parametrize("error", [AttributeError, TypeError, RuntimeError, ValueError])
@pytest.mark.parametrize(
    ("owner", "kernel"),
    [
        (torch, "_fused_sdp_choice"),
        (torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"),
    ],
)
def test_without_a_private_kernel_scores_are_the_same(owner, kernel, error, monkeypatch):
    model = tiny("llama", "classify", max_position_embeddings=512)
    ids = torch.arange(300).remainder(90).add(5).tolist()  # long: the weights are computed in parts
    expected = Explainer(model)(ids)
    monkeypatch.setattr(owner, kernel, refuses(error))
    actual = Explainer(model)(ids)
    torch.testing.assert_close(
        torch.tensor(actual.scores), torch.tensor(expected.scores), rtol=1e-5, atol=1e-6
    )
    assert actual.ledger.relative < 1e-5


def test_a_private_kernel_that_gives_other_shapes_is_not_used(monkeypatch, rng):
    query, key, value = (torch.randn(1, 2, 5, 4, generator=rng) for _ in "qkv")
    monkeypatch.setattr(
        torch.ops.aten,
        "_scaled_dot_product_flash_attention_for_cpu",
        lambda *args, **kwargs: (torch.zeros(1, 5, 2, 4), torch.zeros(1, 5, 2)),
    )
    out, log_sums = torch_internals.attention_with_log_sums(query, key, value)
    assert log_sums is None
    torch.testing.assert_close(out, nn.functional.scaled_dot_product_attention(query, key, value))
