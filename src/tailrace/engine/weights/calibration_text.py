"""The text that `calibrate` runs once per model: a bit of everything that a chat model meets.

Its content hardly matters (outlier channels are the model's, not the text's), but it belongs to the arithmetic: another
text may choose other wide channels and so give other last bits. Part of the packed cache's recipe.
"""

CALIBRATION_TEXT = """user
Could you explain why the sky turns red in the evening, and keep it short?
assistant
When the sun is low, its light crosses far more air than at noon. Air scatters blue light sideways much more strongly \
than red, so by the time the light reaches you most of the blue has been taken out, and what is left looks orange.
user
Write a Python function that returns the n largest items of a list, with a test.
assistant
```python
def largest(items: list[int], n: int) -> list[int]:
    if n < 0:
        raise ValueError(f"n must not be negative, got {n}")
    return sorted(items, reverse=True)[:n]

assert largest([3, 1, 4, 1, 5], 2) == [5, 4]
```
The river had risen overnight. By seven o'clock the lower meadow was gone, and Marta stood at the gate with her boots \
in the water, counting sheep. "Forty-one," she said. "There should be forty-three."

In the third quarter of 2023 revenue grew by 12.4 % to $3,481,900; see table 7.

1. Peel two onions and cut them into thin rings.
2. Heat 30 ml of olive oil.

{"id": 1042, "name": "Zoë Müller", "tags": ["new", "priority"], "active": true, "address": null}

Le petit chat dort sur la chaise. Der Zug fährt um 9:45 Uhr. ¿Dónde está? 東京は日本の首都です。

SELECT city, COUNT(*) AS visits FROM trips GROUP BY city ORDER BY visits DESC;
"""
