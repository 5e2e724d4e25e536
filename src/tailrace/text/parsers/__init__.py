"""What the text of an answer means: prose, and calls of tools in the way that the model's family writes them.

    formats.py     the families: how each writes calls, and which one a template means
    delta.py       what a parser finds: the one event between a model's text and whatever protocol shows it
    json_calls.py  calls written as JSON, behind a mark or as the whole answer; json_call.py reads one
    pythonic.py    calls written as Python
    prose.py       the text around calls

A parser takes text in pieces of any size. What it finds, joined, is the same for every way to cut the text.
"""
