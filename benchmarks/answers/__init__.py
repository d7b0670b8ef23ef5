"""Whether explanations of answers point at what the answer comes from, beside other libraries.

    python -m benchmarks.answers --model FOLDER [--kinds planted,two_hop,passages,needles]
                                 [--count 60] [--needles 4] [--lengths 512,1024,2048,4096]
                                 [--methods NAMES] [--peers FOLDER …] [--tables]
                                 [--out docs/data/answers.json] [--page docs/answers.md]

Cases are generated with fixed seeds: a prompt of units (sentences or passages), the units that the
answer comes from, and the answer. A case counts if the model gives the answer by greedy decoding,
and no longer does when any of these units is left out; so they are its sources by intervention.

- planted: six facts of one form, one of which is asked for.
- two_hop: who has which key, and which door each key opens. The answer says both, " red key. The
  red key opens door 412"; the key and the door must be the model's, the words between are given.
- passages: five passages of three sentences, one of which holds the answer.
- needles: one fact in a long text of other sentences.

Each library explains the total of the answer in a process of its own, since some patch transformers
globally; the processes take turns case by case. The scores of tokens are added up by unit, for all
methods in the same way: signed, or positive scores only, whichever has the higher recall@1 over
all methods and validation cases (every fourth). Tables show the other cases, and all needles. The
first token and the question are no candidates. Leaving out: the log-probability that the answer
loses without a unit, for each unit. Deletion: the mean of the answer's log-probability while the
first three units of a method's ranking are deleted, as in RISE.

`--out` keeps what was measured: a second call continues where the file ends, runs methods that its
cases lack, and `--tables` only prints the tables again; `--page` writes them into a page. Time is
processor time, memory the peak of the resident set above that of the loaded model; "span" is the
time without the forward pass, which further spans of an answer share. Libraries are used where they
can be imported; `--peers` adds folders to look in.
"""
