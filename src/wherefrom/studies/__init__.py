"""Studies: measurements on the model itself, beside the metrics of explanations.

base                `Study`, the base class, and the samples that a study receives
attention_erasure   whether attention weights of the last layer decide the prediction
layer_profile       Σ relevance after each block and around each norm
unit_profile        relevance of each unit after each block, for one sample
registry            `STUDIES`, the studies that `evaluate(metrics=...)` knows by name
"""
