"""Answers that must follow a grammar: a JSON Schema, a regular expression, a Lark grammar.

How to use it: put a `types.Grammar` into `GenerateRequest.grammar` (protocol/structured.py makes them, and
`json_part` there writes a schema as a piece of a larger Lark grammar). Everything else follows:

    Backend.check -> compiler.py    compiles it off the event loop, guarded by a process of its own (guard.py)
    Group.grammar -> state.py       each choice walks its own copy, as far as its tokens are known
    drafter.py                      what the grammar leaves no choice about is drafted: computed in one step
    certain.py                      ... and without the output layer
    masks.py                        while the model runs, the tokens that may come next, as bits for the sampler

An answer is a function of request and seed as without a grammar: a mask depends on the choice's tokens alone, and where
the grammar leaves no choice the mask is that one token, whether it was drafted or not.
"""
