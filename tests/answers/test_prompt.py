"""Every token of a prompt knows its part, whatever the template does with the contents."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tiny import model as tiny
from wherefrom import Answer, Explainer, Passage, Prompt
from wherefrom.answers.prompt import Script, is_messages
from wherefrom.answers.tokens import pieces_of, read_answer, read_prompt
from wherefrom.errors import InputError

CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STRIPS = CHATML.replace("m['content']", "m['content'] | trim")
MERGES = (  # the system message goes into the user's, as in some templates
    "{% for m in messages %}{% if m['role'] == 'system' %}{% else %}[{{ m['content'] }}"
    "{% if loop.last and messages[0]['role'] == 'system' %} ({{ messages[0]['content'] }})"
    "{% endif %}]{% endif %}{% endfor %}"
)
SHOUTS = CHATML.replace("m['content']", "m['content'] | upper")


@pytest.fixture
def chat(bytepairs):
    """Sets a template, and takes it away again."""

    def with_template(template):
        bytepairs.chat_template = template
        return bytepairs

    yield with_template
    bytepairs.chat_template = None


def parts_of(prompt):
    return {part.name: prompt.text[part.start : part.end] for part in prompt.parts}


def test_a_content_that_says_what_the_template_says_is_found_in_its_place(chat):
    prompt = read_prompt(chat(CHATML), [{"role": "user", "content": "user"}])
    assert prompt.text == "<|user|>user<|end|><|assistant|>"
    assert [(part.start, part.end) for part in prompt.parts] == [(8, 12)]
    inside = [unit for unit in prompt.units if not unit.special]
    assert "".join(unit.text for unit in inside) == "user"
    assert {unit.field for unit in inside} == {"user 1"}
    assert {unit.field for unit in prompt.units if unit.special} == {"template"}


def test_a_message_that_only_calls_tools_has_no_content(chat):
    call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "two and one"},
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "tool", "content": "3"},
    ]
    prompt = read_prompt(chat(CHATML), messages)
    assert "two and one" in prompt.text
    assert prompt.script.notes == ()
    assert set(parts_of(prompt)) == {"user 1", "tool 1"}
    messages[1]["tool_calls"] = [call]
    left_out = "tool_calls of the message assistant 1 were left out of the prompt"
    with pytest.warns(UserWarning, match=left_out):
        read = read_prompt(chat(CHATML), messages)
    assert read.text == prompt.text
    assert left_out in read.script.notes[0]


def test_what_was_left_out_of_a_prompt_is_on_record(chat):
    explainer = Explainer(tiny("gpt2", "write", vocab_size=600), chat(CHATML))
    messages = [{"role": "user", "content": "good", "name": "Anna"}]
    with pytest.warns(UserWarning, match="name of the message user 1"):
        answer = explainer.answer(messages, "bad")
    assert "name of the message" in answer.of().warnings[0]
    again = Answer.from_json(answer.to_json())
    assert again.of().warnings == answer.of().warnings
    with pytest.warns(UserWarning, match="name of the message user 1"):
        answers = explainer.answer([messages, messages], ["bad", "bad"])
    assert all("name of the message" in each.of().warnings[0] for each in answers)


def test_a_template_that_strips_or_reorders(chat):
    messages = [
        {"role": "system", "content": "  be kind \n"},
        {"role": "user", "content": " a\n\n b "},
    ]
    stripped = read_prompt(chat(STRIPS), messages)
    assert parts_of(stripped) == {
        "system 1": "be kind",
        "user 1, paragraph 1": "a\n\n ",
        "user 1, paragraph 2": "b",
    }
    merged = read_prompt(chat(MERGES), messages)
    assert merged.text == "[ a\n\n b  (  be kind \n)]"
    assert parts_of(merged)["system 1"] == "  be kind \n"
    with pytest.raises(InputError, match="changes the content of message 1"):
        read_prompt(chat(SHOUTS), messages)


@settings(max_examples=60)
@given(
    st.lists(st.text(alphabet="ab \n<|user>", min_size=1, max_size=12), min_size=1, max_size=3),
    st.sampled_from([CHATML, STRIPS]),
)
def test_parts_are_the_contents_for_any_text(bytepairs, contents, template):
    if not "".join(contents).strip():
        return
    bytepairs.chat_template = template
    try:
        messages = [{"role": "user", "content": content} for content in contents]
        prompt = read_prompt(bytepairs, messages)
    finally:
        bytepairs.chat_template = None
    for number, content in enumerate(contents, 1):
        named = [part for part in prompt.parts if part.name.split(",")[0] == f"user {number}"]
        text = "".join(prompt.text[part.start : part.end] for part in named)
        assert text == (content.strip() if template is STRIPS else content)


def test_named_parts_with_and_without_a_template(chat, bytepairs):
    named = Prompt(" who? ", ["a b.", Passage("c d.", "Title")], "be kind")
    plain = read_prompt(bytepairs, named)
    assert plain.text == "be kind\n\n[1] a b.\n\n[2] Title\nc d.\n\nQuestion: who?\nAnswer:"
    expected = {
        "system": "be kind",
        "passage 1": "a b.",
        "passage 2": "Title\nc d.",
        "question": "who?",
    }
    assert parts_of(plain) == expected
    templated = read_prompt(chat(CHATML), named)
    assert parts_of(templated) == expected
    assert templated.text.startswith("<|system|>be kind<|end|><|user|>[1] a b.")
    assert templated.script is not None
    shorter = templated.script.without("passage 1").rendered(bytepairs)[0]
    assert (
        shorter
        == "<|system|>be kind<|end|><|user|>[2] Title\nc d.\n\nQuestion: who?<|end|><|assistant|>"
    )


def test_what_is_no_prompt_is_said_in_a_line(chat, bytepairs):
    with pytest.raises(InputError, match="the prompt is empty"):
        read_prompt(bytepairs, Prompt())
    with pytest.raises(InputError, match="passage 2 is empty"):
        read_prompt(bytepairs, Prompt("who?", ["a", " "]))
    with pytest.raises(InputError, match="a chat message is"):
        read_prompt(chat(CHATML), [{"role": "user"}])
    with pytest.raises(InputError, match="must be text"):
        read_prompt(chat(CHATML), [{"role": "user", "content": [{"type": "audio"}]}])
    with pytest.raises(InputError, match="1 image placeholder"):
        read_prompt(chat(CHATML), [{"role": "user", "content": [{"type": "image"}]}])
    for key, value, problem in (
        ("path", "cat.png", "no processor for images"),
        ("url", "https://example.org/cat.png", "nothing is fetched from the network"),
    ):
        with pytest.raises(InputError, match=problem):
            read_prompt(
                chat(CHATML), [{"role": "user", "content": [{"type": "image", key: value}]}]
            )
    with pytest.raises(InputError, match="cannot answer a float"):
        read_prompt(bytepairs, 3.5)
    with pytest.raises(InputError, match="rejects these messages"):
        read_prompt(chat("{{ raise_exception('no such role') }}"), [{"role": "x", "content": "y"}])
    with pytest.raises(InputError, match=r"these messages \(x\): .*\bTemplateError\(''\)"):
        read_prompt(chat("{{ raise_exception('') }}"), [{"role": "x", "content": "y"}])
    assert is_messages([{"role": "user"}])
    assert not is_messages("text")


def test_blocks_of_text_are_a_content(chat):
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parts_of(read_prompt(chat(CHATML), [{"role": "user", "content": content}])) == {
        "user 1": "ab"
    }


def test_paragraphs_of_a_text_are_its_parts():
    text, parts = Script.of("\n\na\n\nb c\n \n\nd", chat=False).rendered(None)
    assert text == "\n\na\n\nb c\n \n\nd"
    assert "".join(text[part.start : part.end] for part in parts) == text
    assert [part.name for part in parts] == ["paragraph 1", "paragraph 2", "paragraph 3"]


@settings(max_examples=50)
@given(st.text(min_size=1, max_size=40).filter(lambda text: text.strip() != ""))
def test_pieces_of_tokens_make_up_the_text(bytepairs, text):
    ids = bytepairs(text).input_ids
    assert "".join(pieces_of(bytepairs, [], ids)) == bytepairs.decode(ids)


def test_half_a_character_is_shown_once_it_is_whole_or_at_the_end(bytepairs):
    before, ids = bytepairs("the").input_ids, bytepairs("é!").input_ids
    assert pieces_of(bytepairs, before, ids) == ["", "é", "!"]
    assert pieces_of(bytepairs, before, ids[:1]) == ["\ufffd"]


def test_a_prompt_without_the_end_that_a_tokenizer_puts_behind(wordpiece):
    prompt = read_prompt(wordpiece, "the film is")
    assert prompt.ids[0] == wordpiece.cls_token_id
    assert prompt.ids[-1] != wordpiece.sep_token_id
    answer = read_answer(wordpiece, prompt, " good")
    assert list(answer.ids) == wordpiece(" good", add_special_tokens=False).input_ids


def test_the_side_of_padding_changes_nothing(bytepairs):
    """A prompt is read alone: a tokenizer that pads on the left, as for generation, is as good."""
    left = copy.deepcopy(bytepairs)
    left.padding_side = "left"
    for text in ("who is it?", "the movie is lovely.\n\nParis is it."):
        assert read_prompt(left, text) == read_prompt(bytepairs, text)
