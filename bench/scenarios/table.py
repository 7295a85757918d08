"""The scenarios. Sizes keep all of them together within 25 minutes on two cores.

It must not know how they are run.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.scenarios.published import MLSERVER_BURST, MLSERVER_RATE
from bench.scenarios.scenario import HFX, Case, Goal, Model, PeerWay, Scenario
from bench.scenarios.texts import Texts
from hfx.names import MAX_TOKENS, NO_REPEAT_NGRAM_SIZE, NUM_BEAMS, Task
from hfx.perf.load import Closed, Open

SENTENCE = Texts("same", text="This is a generation for the work")
FIFTY = {MAX_TOKENS: 50}
GPT2 = Model("distilgpt2", Task.TEXT_GENERATION, slots=128)  # a row for each of many callers
TORCH, OPTIMUM, CT2 = PeerWay("torch", "fp32"), PeerWay("optimum", "int8"), PeerWay("ctranslate2", "int8")
OPENVINO, INSIDE = PeerWay("openvino", "int8"), PeerWay(HFX, "int8")
MLSERVER = PeerWay("mlserver", "bf16", rounds=2)
SLOW_TORCH = PeerWay("torch", "fp32", rounds=1)


def _faster(case: Case, **least: float) -> tuple[Goal, ...]:
    """Requests a second, in times of those of peers (torch=3.0)."""
    ways = {way.name: way.label for way in (TORCH, OPTIMUM, CT2, OPENVINO, MLSERVER)}
    return tuple(
        Goal("pace", case.key, least=times, against=ways[name], relation="ratio") for name, times in least.items()
    )


BURST = Case("at once", Open(arrivals="burst"), SENTENCE, rows=512, requests=512, settings=FIFTY)
MLSERVER_BURST_SCENARIO = Scenario(
    "mlserver-burst",
    '512 prompts "This is a generation for the work" at once, 50 tokens each, greedy',
    GPT2,
    (BURST,),
    (MLSERVER, CT2, OPENVINO, SLOW_TORCH),
    (*_faster(BURST, mlserver=2.5, ctranslate2=1.0),),
    rounds=3,
    published=MLSERVER_BURST,
)

RATE = Case("arriving", Open(rate=50.0), SENTENCE, rows=150, seconds=3.0, settings=FIFTY)
MLSERVER_RATE_SCENARIO = Scenario(
    "mlserver-50rps",
    "the same prompt 50 times a second for 3 s, whether earlier ones are answered or not",
    GPT2,
    (RATE,),
    (PeerWay("mlserver", "bf16", served=True),),
    (
        Goal("throughput", RATE.key, least=47.5),
        *_faster(RATE, mlserver=1.8),
        Goal("p50", RATE.key, most=1 / 3, against=MLSERVER.label, relation="ratio"),
    ),
    rounds=3,
    published=MLSERVER_RATE,
)

DOCUMENTS = Texts("documents", lengths="fixed:768")
SUMMARY = {MAX_TOKENS: 64, NUM_BEAMS: 4, NO_REPEAT_NGRAM_SIZE: 3}
BILLS = tuple(
    Case("documents", Closed(size), DOCUMENTS, rows=size, requests=2 * size, settings=SUMMARY) for size in (1, 4)
)
BILLSUM = Scenario(
    "billsum",
    "summaries of long documents: 768 tokens read, 64 written with 4 beams",
    Model("bart-large-cnn", Task.SUMMARIZATION, slots=16),
    BILLS,
    (CT2, OPENVINO, SLOW_TORCH),
    tuple(goal for case in BILLS for goal in _faster(case, ctranslate2=1.5, openvino=1.5, torch=6.0)),
    rounds=2,
)

QUESTIONS = tuple(
    Case("questions", Closed(size), Texts("questions"), rows=size, requests=4 * size, settings={MAX_TOKENS: 48})
    for size in (1, 8)
)
FAQ = Scenario(
    "faq",
    "questions about short texts, answers of 48 tokens",
    Model("flan-t5-base", Task.TEXT2TEXT_GENERATION, slots=16),
    QUESTIONS,
    (CT2, OPENVINO, SLOW_TORCH),
    tuple(goal for case in QUESTIONS for goal in _faster(case, ctranslate2=2.0, torch=6.0)),
    rounds=3,
)

# Many callers answer in few batches: they take longer until a rate is one.
SECONDS = {1: 1.5, 8: 2.0, 16: 2.0, 64: 4.0}
LABELS = tuple(
    Case(f"{width} tokens", Closed(size), Texts("lengths", lengths=f"fixed:{width}"), rows=size, seconds=seconds)
    for width in (16, 128)
    for size, seconds in SECONDS.items()
)
CLASSIFY = Scenario(
    "classify",
    "labels of texts of 16 and of 128 tokens, for 1 to 64 callers; peers get as many texts at once",
    Model("distilbert-base", Task.TEXT_CLASSIFICATION),
    LABELS,
    (INSIDE, TORCH, OPTIMUM, OPENVINO),
    (
        *(goal for case in LABELS for goal in _faster(case, torch=3.0)),
        Goal("p50", LABELS[0].key, most=1.0, against=INSIDE.label, relation="difference"),
        Goal("p50", LABELS[4].key, most=1.0, against=INSIDE.label, relation="difference"),
    ),
    rounds=3,
)

CHAT_TEXTS = Texts("lengths", lengths="lognormal:40,0.8,400", answers="lognormal:40,0.6,128")
SLO = "ttft<200ms,tpot<50ms"
CHATS = tuple(
    Case("chats", Open(rate=rate, arrivals="poisson"), CHAT_TEXTS, seconds=8.0, slo=SLO, stream=True)
    for rate in (5.0, 10.0, 20.0, 30.0)
)
CHAT = Scenario(
    "chat-ragged",
    "prompts and answers of log-normal lengths that come by chance, streamed",
    GPT2,
    CHATS,
    (),
    (Goal("goodput", CHATS[0].key, least=0.99), Goal("goodput", CHATS[2].key, least=0.95)),
    rounds=2,
)

SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (MLSERVER_BURST_SCENARIO, MLSERVER_RATE_SCENARIO, BILLSUM, FAQ, CLASSIFY, CHAT)
}
