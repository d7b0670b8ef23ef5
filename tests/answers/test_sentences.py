"""Sentences as people write them: cases of each kind of rule that public segmenters test."""

import re
from itertools import pairwise

import pytest

from wherefrom.answers.sentences import sentence_spans
from wherefrom.errors import InputError

# the expected sentences are separated by "|", which is left out of the text
CASES = {
    "a period": "The film is long. |I liked it.",
    "a question": "Is it far? |I think so.",
    "an exclamation": "What a film! |I liked it.",
    "several marks": "Really?! |Yes!! |Why?? |Well.",
    "an initial": "It was written by Anna K. Berg in 1990.",
    "two initials": "J. R. Miller came late. |He sat down.",
    "the pronoun I": "It was you and I. |We were late.",
    "a page": "Read p. 12 and pp. 14 to 16 first.",
    "a company in a sentence": "He left Miller & Co. in May.",
    "a company at the end": "He left Miller & Co. |They were angry.",
    "a title": "Dr. No met Mrs. Ray and Prof. Lee. |They talked.",
    "a mountain": "You can see Mt. Etna and St. Peter from here.",
    "an abbreviation before a name": "They live in the U.S. Virgin Islands.",
    "an abbreviation at the end": "They live in the U.S. |We do not.",
    "an abbreviation with a lower-case word": "They moved to the U.S. for work.",
    "for example": "Bring fruit, e.g. Apples or pears, i.e. Something sweet.",
    "a time": "At 5 p.m. the shop closes. |At 6 a.m. it opens.",
    "an amount": "It costs $3.50 today. |Yesterday it was $4.00. |It falls.",
    "a percentage": "It fell by 3.5 % in May. |It rose by 2 %. |Good.",
    "a German number": "Es waren 1.500 Stück, also 3,5 % mehr. |Das ist viel.",
    "a German abbreviation": "Wir nehmen z.B. Äpfel bzw. Birnen. |Das reicht.",
    "a German date": "Sie kam am 3. Mai nach Bremen. |Er nicht.",
    "a French quotation": "Il a dit « Viens. Vite ! » |Elle est venue.",
    "a Spanish question": "¿Vienes hoy? |¡Claro!",
    "brackets in a sentence": "She teaches (She was a pilot once.) at a school.",
    "brackets after a sentence": "She teaches. |(She was a pilot once.) |Now she is old.",
    "an email": "Write to anna.berg@example.org. |She answers.",
    "an address": "See https://example.org/a.b/c.html?x=1. |It is short.",
    "a quotation in a sentence": 'He asked, "Is it you?" and left.',
    "two sentences in a quotation": 'He said, "I came. I saw." |Then he left.',
    "curly quotes": "He said, “It is late.” |She nodded.",
    "a name with a mark": "She works at Yahoo! in Bremen.",
    "an ellipsis in a sentence": "I was... well, late.",
    "an ellipsis at the end": "I never said that... |She left.",
    "spaced dots": "It was . . . rather long. |It ended.",
    "a number sign": "The treasure is at No. 12. |That is all.",
    "a version": "Use Python 3.11 or 3.12. |Not 2.7.",
    "a list": "1. The first\n|2. The second\n|3. The third",
    "a list of sentences": "1. It is red. |It is old.\n|2. It is blue.",
    "a list with brackets": "1.) It is red.\n|2.) It is blue.",
    "letters": "a. It is red.\n|b. It is blue.",
    "bullets": "- It is red\n|* It is blue\n|• It is green",
    "a heading": "Results\n\n|It is red.",
    "bold": "**It is red.** |It is blue.",
    "code": "Run `a.b. C` now. |Then stop.",
    "a block of code": "Do this:\n|```\nx = 1.\nY = 2.\n```\n|It works.",
    "Chinese": "这是一本书。|那是什么？|好！",
    "Japanese": "これはペンです。|「はい。そうです。」と彼は言った。",
    "Hindi": "मैं ठीक हूँ! |आप कैसे हैं?",
    "a Japanese list": "りんご\n|みかん",
    "a decimal at the end": "It is 3.5. |That is much.",
    "a year at the end": "It was in 1990. |Then he left.",
    "no end": "It is",
    "spaces around": "  It is.   |It was.  ",
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_sentences_end_where_a_reader_ends_them(kind):
    text = CASES[kind].replace("|", "")
    expected = [part.strip() for part in CASES[kind].split("|")]
    assert [text[a:b] for a, b in sentence_spans(text)] == expected


def test_no_character_is_lost_or_counted_twice():
    text = "\n".join(CASES.values()).replace("|", "")
    spans = sentence_spans(text)
    assert all(a < b for a, b in spans)
    between = [text[b:a] for (_, b), (a, _) in pairwise(spans)]
    assert not "".join(between).strip()
    assert sentence_spans("") == sentence_spans(" \n ") == []


def test_a_splitter_of_the_user_is_used():
    text = "One; two;  three"
    spans = sentence_spans(text, lambda text: re.split(r"(?<=;)\s", text))
    assert [text[a:b] for a, b in spans] == ["One;", "two;", "three"]


@pytest.mark.parametrize("wrong", [["two", "One"], ["one"], [(0, 3)]])
def test_a_splitter_must_return_the_sentences_of_the_text(wrong):
    with pytest.raises(InputError, match="in order; got"):
        sentence_spans("One. two.", lambda text: wrong)
