"""Hostile inputs, each with the expected answer: it is explained, or an error says these words.

`TEXTS`, `TABLES`, `LABELS`, `SETTINGS` and `ARGUMENTS` are attacks on the library, on every
command and on the page. An entry has the words of the error, or `EXPLAINED`.
"""

import gzip
from typing import NamedTuple

EXPLAINED = ""
HALF = "half of a character"
EMPTY = "text is empty"
LONG = "tokens, but the model takes"

TEXTS = {
    "empty": ("", EMPTY),
    "blanks": (" \t\r\n ", EMPTY),
    "exotic blanks": ("\u2003\u00a0\u2028\x85\x1c", EMPTY),
    "a lone surrogate": ("\ud800", HALF),
    "an undecodable byte": ("good \udcff film", HALF),
    "the second half first": ("\udc00\ud800", HALF),
    "very many tokens": ("good " * 20_000, LONG),
    "very many letters": ("a" * 200_000, EXPLAINED),
    "null": ("good\0film", EXPLAINED),
    "only null": ("\0", EXPLAINED),
    "colours": ("\x1b[31mgood\x1b[0m film", EXPLAINED),
    "a window title": ("\x1b]0;owned\x07good", EXPLAINED),
    "a screen cleared": ("good \x1b[2J\x1b[H film", EXPLAINED),
    "an 8-bit escape": ("good \x9b31m film", EXPLAINED),
    "a line overwritten": ("bad film\rgood film", EXPLAINED),
    "backspaces": ("bad\b\b\bgood", EXPLAINED),
    "direction turned": ("good \u202e mlif \u2066 x", EXPLAINED),
    "line separators": ("good\u2028film\u2029it", EXPLAINED),
    "a byte order mark": ("\ufeffgood film", EXPLAINED),
    "nothing to see": ("\u200b\u2060", EXPLAINED),
    "not a character": ("good \uffff \ufdd0", EXPLAINED),
    "private use": ("\ue000\U0010ffff", EXPLAINED),
    "a family": ("\U0001f468\u200d\U0001f469\u200d\U0001f467 good", EXPLAINED),
    "combining marks": ("g" + "\u0301" * 500 + "ood", EXPLAINED),
    "no precomposed form": ("gȯȯd \u0344 ﬁlm \u1e9e", EXPLAINED),
    "look-alikes": ("gооd film", EXPLAINED),
    "markup": ("[bold red]good[/] [/bold] film", EXPLAINED),
    "a link in markup": ("[link=file:///etc/passwd]good[/link]", EXPLAINED),
    "a script": ("<script>alert(1)</script> good", EXPLAINED),
    "an attribute": ("\" onload='alert(1)' x=\"", EXPLAINED),
    "a formula": ("=1+1", EXPLAINED),
    "a command": ("@SUM(A1) +2 -3", EXPLAINED),
    "format strings": ("%s %n {0.__class__} ${x}", EXPLAINED),
    "special tokens": ("[CLS] good [SEP] [PAD] film", EXPLAINED),
    "a path": ("../../etc/passwd", EXPLAINED),
    "a url": ("http://127.0.0.1/", EXPLAINED),
    "a number": ("1e999 NaN -0", EXPLAINED),
    "one letter": ("a", EXPLAINED),
}
"""Texts: what a library call, a command, a line of a file or a row of a table answers."""


class Table(NamedTuple):
    """A file of rows: the error that reading it gives, or the number of rows that are read."""

    name: str
    content: bytes
    error: str = EXPLAINED
    rows: int = 0


_GOOD = "text,label\na good film,good\na bad film,bad\n"
_DEEP = 100_000

TABLES = {
    "plain": Table("a.csv", _GOOD.encode(), rows=2),
    "a byte order mark": Table("a.csv", b"\xef\xbb\xbf" + _GOOD.encode(), rows=2),
    "a marked JSONL": Table("a.jsonl", b'\xef\xbb\xbf{"text": "film"}\n', rows=1),
    "Windows lines": Table("a.csv", _GOOD.replace("\n", "\r\n").encode(), rows=2),
    "old lines": Table("a.jsonl", b'{"text": "good"}\r{"text": "bad"}\r', rows=2),
    "a line separator": Table(
        "a.jsonl", '{"text": "good \u2028 film \x85 it"}\n{"text": "bad"}\n'.encode(), rows=2
    ),
    "a long field": Table(
        "a.csv", f"text,label\n{'good ' * 40_000},good\nit,bad\n".encode(), rows=2
    ),
    "a null": Table("a.csv", b"text,label\ngo\0od,good\n", rows=1),
    "a quote left open": Table("a.csv", b'text,label\n"good film,good\nit,bad\n', rows=1),
    "more cells than columns": Table(
        "a.csv", b"text,label\ngood,good,x,y\n", "line 2 has 4 fields"
    ),
    "two columns of one name": Table("a.csv", b"text,text,label\nbad,good,a\n", "several columns"),
    "no row": Table("a.csv", b"text,label\n", "has no rows"),
    "nothing": Table("a.csv", b"", "has no rows"),
    "only null bytes": Table("a.jsonl", b"\0" * 100, "line 1 is not JSON"),
    "damaged UTF-8": Table(
        "a.csv",
        "text,label\ncafé,good\n".encode() + b"caf\xe9,bad\n",
        rows=1,
    ),
    "no text in any encoding": Table("a.csv", b"text\n\x81\x00\x07\n", "line 2 is not UTF-8"),
    "UTF-16": Table("a.csv", _GOOD.encode("utf-16"), rows=2),
    "UTF-16 without a mark": Table("a.csv", _GOOD.encode("utf-16-le"), rows=2),
    "UTF-32": Table("a.csv", _GOOD.encode("utf-32"), rows=2),
    "half of UTF-16": Table("a.csv", _GOOD.encode("utf-16")[:-1], "is not utf-16"),
    "a surrogate in UTF-8": Table("a.csv", b"text\n\xed\xa0\x80\n", "line 2 is not UTF-8"),
    "a surrogate escaped": Table(
        "a.jsonl", b'{"text": "good \\ud800"}\n{"text": "film"}\n', rows=2
    ),
    "a cut gzip": Table("a.csv.gz", gzip.compress(_GOOD.encode())[:-12], "damaged gzip data"),
    "a wrong checksum": Table(
        "a.csv.gz", gzip.compress(_GOOD.encode())[:-8] + bytes(8), "damaged gzip data"
    ),
    "a garbled gzip": Table(
        "a.csv.gz", gzip.compress(b"")[:10] + b"\x07" + b"\xff" * 100, "damaged gzip data"
    ),
    "no gzip": Table("a.csv.gz", b"text\ngood\n", "damaged gzip data"),
    "a gzip bomb": Table(
        "a.csv.gz", gzip.compress(bytes(80 << 20), 1), "unpacks to more than 100 times its size"
    ),
    "a gzip twice": Table(
        "a.csv.gz", gzip.compress(gzip.compress(_GOOD.encode(), mtime=0), mtime=0), "is not UTF-8"
    ),
    "nested lists": Table("a.jsonl", b"[" * _DEEP, "line 1 is nested too deeply"),
    "nested objects": Table("a.jsonl", b'{"text":' * _DEEP, "line 1 is nested too deeply"),
    "a nested text": Table(
        "a.jsonl", b'{"text":' + b"[" * _DEEP + b"]" * _DEEP + b"}", "line 1 is nested too deeply"
    ),
    "a number of 5,000 digits": Table(
        "a.jsonl",
        b'{"text": "good", "label": ' + b"9" * 5000 + b"}",
        "a number with too many digits",
    ),
    "no object": Table("a.jsonl", b'"good"\n', "not an object"),
    "half an object": Table("a.jsonl", b'{"text": "good"\n', "line 1 is not JSON"),
    "a text that is a number": Table("a.jsonl", b'{"text": 3}\n', "none with a text"),
    "no Parquet": Table("a.parquet", b"PAR1" + bytes(50), "cannot read"),
    "another kind": Table("a.xlsx", b"PK", "must end in .csv"),
    "no columns of use": Table("a.csv", b"a,b\n1,2\n", "no column looks like the text"),
}
"""Files: what reading them answers."""

_NO_LABEL = "there is no label"
LABELS = {
    "superscript": ("²", _NO_LABEL),
    "two dashes": ("--5", _NO_LABEL),
    "below zero": ("-1", _NO_LABEL),
    "beyond": ("3", "there is no class 3"),
    "in Arabic digits": ("٣", "there is no class 3"),
    "5,000 digits": ("9" * 5000, "there is no class 9999"),
    "30 digits": ("9" * 30, "there is no class 9999"),
    "underscores": ("1_0", _NO_LABEL),
    "hexadecimal": ("0x1", _NO_LABEL),
    "a fraction": ("1.5", _NO_LABEL),
    "infinite": ("inf", _NO_LABEL),
    "half a character": ("\udcff", _NO_LABEL),
    "an escape": ("\x1b[31mgood", _NO_LABEL),
    "two lines": ("go\nod", _NO_LABEL),
    "markup": ("[bold]", _NO_LABEL),
    "very long": ("good" * 50_000, _NO_LABEL),
    "another case": ("GOOD", EXPLAINED),
    "an index": ("1", EXPLAINED),
    "an Arabic index": ("١", EXPLAINED),
}
"""Targets and labels, of a model with the classes bad, good, mixed."""

SETTINGS = {
    "a word for an integer": (
        "integrated_gradients",
        "steps=abc",
        "steps must be an integer, got 'abc'",
    ),
    "a fraction": ("integrated_gradients", "steps=1.5", "steps must be an integer"),
    "None": ("integrated_gradients", "steps=None", "steps must be an integer"),
    "a list": ("integrated_gradients", "steps=[1]", "steps must be an integer"),
    "true": ("integrated_gradients", "steps=True", "steps must be an integer"),
    "zero": ("integrated_gradients", "steps=0", "at least one step"),
    "below zero": ("integrated_gradients", "steps=-3", "at least one step"),
    "a baseline": ("integrated_gradients", "baseline=abc", 'no baseline "abc"'),
    "no sample": ("smoothgrad", "samples=0", "at least one sample"),
    "fewer than none": ("smoothgrad", "samples=-1", "at least one sample"),
    "negative noise": ("smoothgrad", "noise=-0.1", "noise of 0 or more"),
    "no noise": ("smoothgrad", "noise=nan", "noise must be a number"),
    "a seed too large": ("random", "seed=" + "9" * 30, "seed is too large"),
    "a seed of 5,000 digits": ("random", "seed=" + "9" * 5000, "seed must be an integer"),
    "a word for a seed": ("random", "seed=²", "seed must be an integer"),
    "nested": ("lrp", "gate=" + "(" * 5000, "there are: frozen, shared"),
    "minus signs": ("random", "seed=" + "-" * 50_000 + "1", "seed must be an integer"),
    "a dictionary of lists": ("random", "seed={[]: 1}", "seed must be an integer"),
    "half a character": ("lrp", "gate=\udcff", "there are: frozen, shared"),
    "no key": ("lrp", "=3", 'no setting ""'),
    "no value": ("lrp", "gate", "write key=value"),
    "another method's": ("lrp", "steps=3", 'no setting "steps"'),
    "code": ("random", "seed=__import__('os').getpid()", "seed must be an integer"),
    "a root beyond the vocabulary": ("lrp", "root=9999999", "there is no token 9999999"),
    "a negative root": ("lrp", "root=-1", "there is no token -1"),
    "a baseline beyond it": ("integrated_gradients", "baseline=9999999", "no token 9999999"),
    "a good one": ("smoothgrad", "samples=2", EXPLAINED),
}
"""Methods with a setting, as --set takes it."""

ARGUMENTS = {
    "--sample -3": (["evaluate", "{data}", "--out", "{out}", "--sample", "-3"], "got -3"),
    "--sample 0": (["evaluate", "{data}", "--out", "{out}", "--sample", "0"], "got 0"),
    "--seed -1": (["evaluate", "{data}", "--out", "{out}", "--seed", "-1"], "got -1"),
    "--sample ²": (["evaluate", "{data}", "--out", "{out}", "--sample", "²"], "--sample"),
    "--metrics": (
        ["evaluate", "{data}", "--out", "{out}", "--metrics", "\udcff"],
        "unknown metric",
    ),
    "--blank": (["evaluate", "{data}", "--out", "{out}", "--blank", "²"], "no baseline"),
    "--blank beyond the vocabulary": (
        ["evaluate", "{data}", "--out", "{out}", "--blank", "9999999"],
        'no baseline "9999999"',
    ),
    "evaluate --encoding x": (
        ["evaluate", "{data}", "--out", "{out}", "--encoding", "x"],
        'no text encoding "x"',
    ),
    "evaluate --encoding rot13": (
        ["evaluate", "{data}", "--out", "{out}", "--encoding", "rot13"],
        'no text encoding "rot13"',
    ),
    "evaluate --encoding idna": (
        ["evaluate", "{data}", "--out", "{out}", "--encoding", "idna"],
        'no text encoding "idna"',
    ),
    "corpus --encoding x": (
        ["corpus", "{data}", "--out", "{out}", "--encoding", "x"],
        'no text encoding "x"',
    ),
    "corpus --encoding rot13": (
        ["corpus", "{data}", "--out", "{out}", "--encoding", "rot13"],
        'no text encoding "rot13"',
    ),
    "corpus --encoding idna": (
        ["corpus", "{data}", "--out", "{out}", "--encoding", "idna"],
        'no text encoding "idna"',
    ),
    "run --encoding x": (
        ["run", "{data}", "--out", "{out}", "--encoding", "x"],
        'no text encoding "x"',
    ),
    "run --encoding rot13": (
        ["run", "{data}", "--out", "{out}", "--encoding", "rot13"],
        'no text encoding "rot13"',
    ),
    "run --encoding idna": (
        ["run", "{data}", "--out", "{out}", "--encoding", "idna"],
        'no text encoding "idna"',
    ),
    "bias --encoding x": (
        ["bias", "{data}", "--groups", "{names}", "--out", "{out}", "--encoding", "x"],
        'no text encoding "x"',
    ),
    "bias --encoding rot13": (
        ["bias", "{data}", "--groups", "{names}", "--out", "{out}", "--encoding", "rot13"],
        'no text encoding "rot13"',
    ),
    "bias --encoding idna": (
        ["bias", "{data}", "--groups", "{names}", "--out", "{out}", "--encoding", "idna"],
        'no text encoding "idna"',
    ),
    "--encoding without a mark": (
        ["evaluate", "{data}", "--out", "{out}", "--encoding", "utf-16"],
        "UTF-16 stream does not start with BOM",
    ),
    "--device": (["explain", "good", "--device", "meta"], 'no device "meta"'),
    "--out is a device": (
        ["evaluate", "{data}", "--out", "/dev/null"],
        "cannot write to /dev/null",
    ),
    "--out is a file": (["corpus", "{data}", "--out", "{data}"], "cannot write to"),
    "--tokens": (
        ["corpus", "{data}", "--out", "{out}", "--tokens", "-5"],
        "tokens must be 1 or more",
    ),
    "--text-column": (
        ["corpus", "{data}", "--out", "{out}", "--text-column", "\x1b["],
        "no column",
    ),
    "--groups": (["bias", "{data}", "--groups", "{data}", "--out", "{out}"], "--name-column"),
    "--min-capitalised": (
        ["bias", "{data}", "--groups", "{names}", "--out", "{out}", "--min-capitalised", "nan"],
        "between 0 and 1",
    ),
    "--stop": (
        ["bias", "{data}", "--groups", "{names}", "--out", "{out}", "--stop", "{latin}"],
        "line 1 is not UTF-8",
    ),
    "--plot": (["explain", "good", "--plot", "{out}.foo"], "must end in .png, .pdf or .svg"),
    "--plot of two": (
        ["explain", "a good film", "a bad film", "--plot", "{out}.png"],
        "a single input, got 2",
    ),
    "--units": (["explain", "good", "--units", "9" * 5000], "units apply only to images"),
    "--html is full": (["explain", "good", "--html", "/dev/full"], "No space left on device"),
    "--json is full": (["explain", "good", "--json", "/dev/full"], "No space left on device"),
    "--html is a folder": (["explain", "good", "--html", "/"], "Is a directory"),
    "--html is nowhere": (
        ["compare", "good", "--methods", "lrp", "--html", "/no/x"],
        "cannot write",
    ),
    "--json of an audit": (
        ["audit", "good", "--methods", "random", "--json", "/no/x"],
        "cannot write",
    ),
    "--file is missing": (["explain", "--file", "\udcff"], "no file"),
    "--file is a folder": (["compare", "--file", "/"], "Is a directory"),
    "--file is Latin-1": (["audit", "--file", "{latin}"], "line 1 is not UTF-8"),
    "--method": (["explain", "good", "--method", "\udcff\x1b["], "no method"),
    "--methods": (["audit", "good", "--methods", "²"], "no method"),
    "an unknown option": (["explain", "good", "--\udcff"], "No such option"),
    "an unknown command": (["\x1b[31m"], "No such command"),
    "--port": (["serve", "--port", "²"], "Invalid value for '--port'"),
}
"""Command lines with one wrong value; {data}, {names}, {latin}, {out} are files of the test."""
