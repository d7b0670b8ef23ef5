"""From one sentence to a corpus: which words push a model, and which groups of names."""

from whence.corpus.corpus import Corpus
from whence.corpus.lexicon import Lexicon, read_lexicon
from whence.corpus.stream import explain_corpus
from whence.corpus.study import bias
from whence.corpus.views import overview

__all__ = ["Corpus", "Lexicon", "bias", "explain_corpus", "overview", "read_lexicon"]
