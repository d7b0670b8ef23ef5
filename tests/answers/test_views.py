"""The page, the terminal and the command show the same numbers as the answer has."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.tiny import model as tiny
from wherefrom import Explainer, Prompt
from wherefrom.answers.answer import Answer
from wherefrom.cli import app
from wherefrom.errors import InputError
from wherefrom.show.answer import page, terminal
from wherefrom.show.text_marks import whole_percent

CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PASSAGES = ["the movie is lovely.", "Paris </script> is the movie."]
ANSWER = " it is Paris. Love!"


@pytest.fixture(scope="module")
def model(bytepairs):
    size = len(bytepairs)
    return tiny("llama", "write", vocab_size=size, max_position_embeddings=512).float()


@pytest.fixture(scope="module")
def answer(model, bytepairs):
    return Explainer(model, bytepairs).answer(Prompt("who is it?", PASSAGES), ANSWER)


@pytest.fixture(scope="module")
def folder(model, bytepairs, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    bytepairs.chat_template = CHAT
    bytepairs.save_pretrained(path)
    bytepairs.chat_template = None
    return path


def data_of(html):
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


@pytest.mark.filterwarnings("ignore:.*keep their relevance")
def test_the_page_has_a_row_for_each_token_that_adds_up(answer):
    html = page(answer)
    assert "</script> is" not in html  # text of the prompt ends no script
    data = data_of(html)
    assert data["prompt"] == answer.prompt
    assert len(data["units"]) == answer.start
    assert "".join(token[0] for token in data["tokens"]) == ANSWER
    for rows in (data["rows"], data["all_hops"]):
        assert len(rows) == len(answer)
        for row, token in zip(rows, answer.tokens, strict=True):
            assert row["output"] == pytest.approx(token.output, abs=1e-5)
            scale = sum(map(abs, row["lines"].values()))
            assert sum(row["lines"].values()) == pytest.approx(row["output"], abs=1e-5 * scale)
            prompt = sum(
                value
                for value, unit in zip(row["values"], data["units"], strict=False)
                if unit[4] == "prompt"
            )
            assert prompt == pytest.approx(row["lines"]["prompt"], abs=1e-3 * scale)
    direct, through = (sum(row["lines"]["answer"] for row in data[k]) for k in ("rows", "all_hops"))
    assert direct != pytest.approx(through)


@pytest.mark.filterwarnings("ignore:.*keep their relevance")
def test_a_passage_has_the_same_share_everywhere(model, bytepairs):
    answer = Explainer(model, bytepairs).answer(
        Prompt("who is it?", list(PASSAGES)), " Paris is it."
    )
    shares = {source.name: source.share for source in answer.sources("passage")}
    assert sum(map(abs, shares.values())) == pytest.approx(1)
    assert shares["question"]  # is a part of the whole too
    (citation,) = answer.citations()
    assert {s.passage: s.share for s in citation.supports} == {
        name: share for name, share in shares.items() if name.startswith("passage")
    }
    shown = terminal(answer, color=False, width=120)
    data = data_of(page(answer))
    values = np.sum([row["values"] for row in data["rows"]], axis=0)
    sums = {name: sum(values[unit] for unit in units) for name, units in data["sources"]}
    size = sum(map(abs, sums.values()))
    saved = {s["name"]: s["share"] for s in json.loads(answer.to_json())["sources"]}
    for name, share in shares.items():
        assert sums[name] / size == pytest.approx(share, rel=1e-3)
        assert saved[name] == share
        if name.startswith("passage"):
            assert re.search(rf"^ *{whole_percent(share)} .* {name} ", shown, re.MULTILINE)
    assert "share: relevance / Σ |relevance| of the prompt's parts, whose sum is" in shown
    ledger = answer.of().ledger  # the whole that shares are of
    assert sum(sums.values()) == pytest.approx(ledger.of("prompt"), rel=1e-3)


def test_the_terminal_names_sentences_passages_and_the_ledger(answer, model, bytepairs):
    text = terminal(answer, color=False, width=120)
    for sentence in answer.sentences():  # each once, with its passages
        assert re.findall(rf"^{re.escape(sentence.text.strip())}$", text, re.M) == [
            sentence.text.strip()
        ]
    single = Explainer(model, bytepairs).answer(Prompt("who is it?", PASSAGES), " it is Paris")
    shown = terminal(single, color=False, width=120)
    assert len(single.sentences()) == 1
    assert shown.startswith(single.text.strip())
    assert len(re.findall(rf"^{re.escape(single.text.strip())}$", shown, re.M)) == 1
    for expected in ("it is Paris.", "Love!", "passage 1", "passage 2", "share", "prompt", "root",
                     "residual"):  # fmt: skip
        assert expected in text
    assert not re.search("^ *share .* word$", text, re.MULTILINE)
    assert terminal(answer, color=True, width=120) != text
    assert str(answer) == str(terminal(answer))


def test_the_terminal_names_the_words_of_a_prompt_without_passages(model, bytepairs):
    answer = Explainer(model, bytepairs).answer("who is it?", " Paris is it.")
    lines = [line.split() for line in terminal(answer, color=False, width=120).splitlines()]
    start = lines.index(["share", "relevance", "word"]) + 1
    words = [source.text for source in answer.sources("word")]
    assert [line[-1] for line in lines[start : start + len(words)]] == words


def test_json_holds_the_answer_and_its_explanation(answer, tmp_path):
    data = json.loads(answer.to_json(tmp_path / "answer.json"))
    assert data == json.loads((tmp_path / "answer.json").read_text(encoding="utf-8"))
    assert data["schema"] == "wherefrom/answer/1"
    assert data["answer"] == ANSWER
    total = sum(token.output for token in answer.tokens)
    assert data["explanation"]["output"] == pytest.approx(total, rel=1e-4)
    assert data["rows"] is None or len(data["rows"]) == len(answer)


def test_the_command_explains_passages_messages_and_texts(folder, tmp_path):
    for number, text in enumerate(PASSAGES):
        (tmp_path / f"{number}.txt").write_text(text + "\n", encoding="utf-8")
    arguments = ["answer", "-m", str(folder), "--question", "who is it?", "--answer", "Paris."]
    for number in range(2):
        arguments += ["--passages", str(tmp_path / f"{number}.txt")]
    html = tmp_path / "page.html"
    run = CliRunner().invoke(app, [*arguments, "--check", "--html", str(html), "--json", "-",
                                   "--plot", str(tmp_path / "matrix.png")])  # fmt: skip
    assert run.exit_code == 0, run.output
    data = json.loads(run.stdout)
    assert "<|user|>[1] 0\nthe movie is lovely." in data["prompt"]
    assert [part["title"] for part in data["parts"]] == ["0", "1", ""]
    assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")
    supports = data["citations"][0]["supports"]
    assert {s["passage"] for s in supports} == {"passage 1", "passage 2"}
    assert all(isinstance(s["drop"], float) for s in supports)
    assert data_of(html.read_text(encoding="utf-8"))["prompt"] == data["prompt"]

    messages = tmp_path / "chat.json"
    messages.write_text('[{"role": "user", "content": "who?"}]', encoding="utf-8")
    run = CliRunner().invoke(
        app, ["answer", "-m", str(folder), "--prompt", str(messages), "--max-new-tokens", "3"]
    )
    assert run.exit_code == 0, run.output
    assert "explained:" in run.stdout

    run = CliRunner().invoke(
        app,
        ["answer", "-m", str(folder), "--prompt", "the movie is", "--answer", " Paris",
         "--against", "love", "--json", "-"],
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["explanation"]["target"]["label"].startswith(" P")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is no prompt"),
        (["--prompt", "x", "--question", "y"], "pass either --prompt"),
        (["--prompt", "gone.json"], "there is no file gone.json"),
        (["--question", "x", "--passages", "gone.txt"], "gone.txt"),
        (["--prompt", "gone.jsonl"], "there is no file gone.jsonl"),
        (["--prompt", "gone.jsonl", "--html", "page.html"], "--html applies to a single prompt"),
    ],
)
def test_the_command_says_in_a_line_what_is_wrong(arguments, message):
    run = CliRunner().invoke(app, ["answer", "-m", "none", *arguments])
    assert run.exit_code == 2
    assert message in run.stderr


def test_passages_go_with_a_prompt_that_is_a_text(folder, tmp_path):
    (tmp_path / "one.txt").write_text("Paris is the movie.\n")
    (tmp_path / "question.txt").write_text("who is it?\n")
    (tmp_path / "chat.json").write_text('[{"role": "user", "content": "who?"}]')
    options = ["answer", "-m", str(folder), "--passages", str(tmp_path / "one.txt"), "--prompt"]
    run = CliRunner().invoke(
        app, [*options, str(tmp_path / "question.txt"), "--answer", "Paris.", "--json", "-"]
    )
    assert run.exit_code == 0, run.stderr
    parts = {part["name"]: part for part in json.loads(run.stdout)["parts"]}
    assert parts["passage 1"]["title"] == "one"
    assert "question" in parts
    run = CliRunner().invoke(app, [*options, str(tmp_path / "chat.json")])
    assert run.exit_code == 2
    assert "--passages and --system apply only to a text" in run.stderr


def test_a_file_of_many_prompts_gives_a_line_for_each(folder, tmp_path):
    lines = [
        "the movie is",
        {"prompt": "it is", "answer": " Paris."},
        {"question": "who?", "passages": ["Paris is it.", {"text": "no", "title": "One"}]},
        [{"role": "user", "content": "who is it?"}],
    ]
    given = [{**(line if isinstance(line, dict) else {"prompt": line}), "answer": " Paris. love"}
             for line in lines]  # fmt: skip
    file = tmp_path / "many.jsonl"
    options = ["answer", "-m", str(folder), "--prompt", str(file)]
    file.write_text("\n".join(map(json.dumps, given)) + "\n\n")
    run = CliRunner().invoke(app, [*options, "--json", "-", "--of", "logit"])
    assert run.exit_code == 0, run.stderr
    results = [Answer.from_dict(json.loads(line)) for line in run.stdout.splitlines()]
    assert [result.text for result in results] == [" Paris. love"] * 4
    assert [part.title for part in results[2].parts] == ["", "One", ""]
    alone = CliRunner().invoke(app, [*options[:3], "--prompt", "the movie is", "--answer",
                                     " Paris. love", "--of", "logit", "--json", "-"])  # fmt: skip
    expected = Answer.from_json(alone.stdout)
    assert results[0].of().output == pytest.approx(expected.of().output, rel=1e-5)
    file.write_text("\n".join(map(json.dumps, [lines[0], lines[2]])))
    out = tmp_path / "answers.jsonl"
    run = CliRunner().invoke(app, [*options, "--max-new-tokens", "3", "--json", str(out)])
    assert run.exit_code == 0, run.stderr
    assert [len(json.loads(line)["tokens"]) for line in out.read_text().splitlines()] == [3, 3]
    assert run.stdout.count("explained:") == 2
    for text, message in (
        (json.dumps(lines[:2]), "line 1: a prompt is a text or a list of chat messages"),
        ("\n".join(map(json.dumps, lines[:2])), "some lines have an answer but prompt"),
        ('{"promt": "x"}', "line 1: there is no field 'promt'"),
        ('"x"\n{', "line 2 is not JSON: Expecting property name"),
        ('"x"\nwho is it?', "line 2 is not JSON; put the text in quotes."),
        ('{"prompt": "x", "answer": 3}', "answer must be a text, got 3"),
        ("\n", "is empty"),
    ):
        file.write_text(text)
        run = CliRunner().invoke(app, options)
        assert run.exit_code == 2
        assert message in run.stderr


def test_a_prompt_that_cannot_be_answered_is_named_and_left_out(folder, tmp_path):
    file = tmp_path / "many.jsonl"
    lines = [{"prompt": "the movie is"}, {"prompt": "it is " * 500}, {"prompt": "who is it?"}]
    file.write_text("\n".join(json.dumps({**line, "answer": " Paris."}) for line in lines))
    options = ["answer", "-m", str(folder), "--prompt", str(file), "--json", "-"]
    run = CliRunner().invoke(app, options)
    assert run.exit_code == 1
    assert [Answer.from_json(line).text for line in run.stdout.splitlines()] == [" Paris."] * 2
    assert "wherefrom: prompt 2: the prompt has 2001 tokens" in run.stderr
    assert run.stderr.endswith("wherefrom: 1 of 3 prompts could not be explained.\n")


def test_chat_messages_are_not_explained_as_texts(model, bytepairs):
    with pytest.raises(InputError, match="these are chat messages"):
        Explainer(model, bytepairs)([{"role": "user", "content": "who?"}])
