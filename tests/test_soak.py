"""The soak of `make soak`, for seconds, and its eyes: what it must notice."""

import pytest
import soak
from lib.traffic import Stream

GOOD = {
    "failures": [], "sent": 100, "arrived": 100, "twice": 0, "reordered": 0, "missed": {"left": 0}, "files": [90, 95], "threads": [11, 13],
    "counters": {"unaccounted": 0}, "seconds": 7200, "rss_slope_per_hour": 100_000, "rss_slope_error": 50_000,
}  # fmt: skip


def test_everything_at_once_for_a_moment():
    report, wrong = soak.soak(seconds=12, check=5)
    assert wrong == []
    activities = {"route changes", "link flaps", "applies", "traces", "captures", "scrapes", "malformed frames", "comparisons"}
    assert activities <= set(report["done"]), report["done"]
    assert report["sent"] > 0 and report["arrived"] + sum(report["missed"].values()) >= report["sent"]


@pytest.mark.parametrize(("change", "sentence"), [
    ({}, None),
    ({"failures": ["flaps:\nTraceback"]}, "flaps:"),
    ({"twice": 1}, "1 packets arrived twice, 0 out of order"),
    ({"reordered": 2}, "0 packets arrived twice, 2 out of order"),
    ({"arrived": 98}, "2 packets lost, and the ports missed {'left': 0}"),
    ({"arrived": 98, "missed": {"left": 2}}, None),
    ({"counters": {"unaccounted": -3}}, "the sum of the counters is wrong"),
    ({"files": [90, 120]}, "90 descriptors were open, and now 120"),
    ({"threads": [11, 30]}, "there were 11 threads, and now 30"),
    ({"rss_slope_per_hour": 3 << 20}, "memory grows by 3.0 MiB an hour"),
    ({"rss_slope_per_hour": 3 << 20, "rss_slope_error": 2 << 20}, None),
    ({"rss_slope_per_hour": 3 << 20, "seconds": 60}, None),
])  # fmt: skip
def test_faults_are_named(change, sentence):
    wrong = list(soak.faults({**GOOD, **change}))
    assert [text.startswith(sentence) for text in wrong] == [True] if sentence else wrong == []


def test_numbers_that_are_missing_late_or_doubled_are_counted(lab):
    sink = soak.Numbered(lab.namespace("sink"), 4000, 2)
    # Of the flow with even numbers 4 is late, of the other one 3 never comes.
    for number in (0, 1, 2, 6, 5, 4, 8, 8):
        sink._take(number)
    assert (sink.count, sink.reordered, sink.twice) == (7, 1, 1)
    sink.close()


def test_a_real_stream_is_whole(lab):
    space = lab.namespace("host")
    sink = soak.Numbered(space, 4000, 2)
    stream = Stream(space, ["127.0.0.1", "127.0.0.2"], rate=1000, port=4000)
    while sink.count < 500:
        sink.read()
    sent = stream.stop()
    sink.read()
    assert (sink.count, sink.reordered, sink.twice) == (sent, 0, 0)
    sink.close()
