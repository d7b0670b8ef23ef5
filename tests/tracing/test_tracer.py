"""The calls that an error message lists."""

from collections import Counter

from wherefrom.tracing.tracer import describe


def test_a_message_names_the_most_frequent_calls_and_no_more():
    seen = Counter({f"call{i}": i for i in range(1, 9)})
    assert describe(seen) == "call8 ×8, call7 ×7, call6 ×6, call5 ×5, call4 ×4, call3 ×3"
    assert describe(seen, 2) == "call8 ×8, call7 ×7"
    assert describe(Counter(view=3)) == "no torch call"
