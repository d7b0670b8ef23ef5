"""Corpus studies: which words drive a model, and how groups of names differ."""

from wherefrom.corpus.bias_study import bias
from wherefrom.corpus.corpus import Corpus
from wherefrom.corpus.explain import explain_corpus
from wherefrom.corpus.names import Lexicon, read_lexicon
from wherefrom.corpus.views import overview

__all__ = ["Corpus", "Lexicon", "bias", "explain_corpus", "overview", "read_lexicon"]
