"""What the tests of the command line share: a tiny classifier in a folder, and a way to call."""

from typer.testing import CliRunner

from benchmarks.tiny import model as tiny
from wherefrom.cli import app

LABELS = {0: "bad", 1: "good", 2: "mixed"}


def saved_classifier(folder, tokenizer):
    """The folder, with a tiny BERT of three classes and its tokenizer in it."""
    tiny("bert", "classify", id2label=LABELS).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def caller(folder, monkeypatch):
    """Calls the command line on the model in a folder, without colours."""
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*args, stdin=None, model=folder):
        options = () if model is None else ("--model", str(model))
        return CliRunner().invoke(app, [*map(str, args), *options], input=stdin)

    return call
