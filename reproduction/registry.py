"""The nine data sets, the cheapest first.

No setting was chosen by a test figure. Minutes and seconds are of one core.
"""

from __future__ import annotations

from reproduction.graphs import Molecules, Superpixels
from reproduction.sets import ReproductionSet
from reproduction.texts import TextSet
from training.bace import Setting

TWO = ("negative", "positive")
THREE = ("negative", "neutral", "positive")
EMOTIONS = ("anger", "joy", "optimism", "sadness")
# cross-validation within the training and validation molecules chose it (docs/reproduction.md)
BACE = Setting(128, 0.1, 60, rate=3e-4, holes=0.0, structure=1.0)

_ALL: tuple[ReproductionSet, ...] = (
    TextSet("semaine", "Semaine", "silicone_sem", 2, 1, THREE, epochs=4),
    TextSet("meld", "Meld-S", "silicone_meld_s", 3, 0.7, THREE, epochs=2),
    TextSet("emotion", "T-Emotions", "tweeteval_emotion", 2, 1, EMOTIONS, epochs=4),
    TextSet("sst2", "SST-2", "sst2_glue", 5, 1, TWO, batch=64),
    TextSet("hate", "T-Hate", "tweeteval_hate", 3, 1.3, ("not-hate", "hate"), epochs=2),
    TextSet("sentiment", "T-Sentiment", "tweeteval_sentiment", 6, 1, THREE, batch=64),
    Molecules("bace", "BACE", "bace", 5, 0.7, (BACE,)),
    Superpixels("mnist", "MNIST", "mnist", 16, 0.7),
    TextSet("imdb", "IMDB", "imdb", 25, 8, TWO, pieces=256, held=1_000),
)
SETS = {of.name: of for of in _ALL}
