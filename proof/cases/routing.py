"""Which experts tokens go to, and their order. What counts is that nothing spills: there are few bytes to wait for."""

from __future__ import annotations

from proof.case import INT32, Case, Kernel, meta

T, E, K = 8192, 64, 8

_ROUNDS = "each choice is a round over all experts in registers, and a token has but 128 bytes of logits"
_COUNTED = "each program counts all pairs, which stay in the cache, and how many are its own is in the data"
_BUSY = ("issue", "fp32", "alu", "xu", "lsu")

CASES = [
    *(
        Case(
            operator,
            "64 experts",
            lambda more=more: (meta(T, E), K, True, *more),
            {
                "_topk": Kernel(
                    bytes=2 * T * E + 8 * T * K,
                    loops=(K,),
                    narrow_loads=4,
                    narrow_stores=2,
                    waivers=dict.fromkeys(_BUSY, _ROUNDS),
                )
            },
        )
        for operator, more in (("topk_softmax", ()), ("topk_sigmoid", (meta(E),)))
    ),
    Case(
        "moe_align",
        "64 experts",
        lambda: (meta(T, K, dtype=INT32), 64, E, None),
        {
            "_align": Kernel(
                bytes=8 * T * K,
                narrow_loads=99,
                narrow_stores=99,
                waivers=dict.fromkeys((*_BUSY, "loads", "loops"), _COUNTED),
            )
        },
    ),
]
