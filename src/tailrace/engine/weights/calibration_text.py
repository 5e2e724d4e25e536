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
in the water, counting sheep. "Forty-one," she said. "There should be forty-three." Her brother shrugged; he had been \
up since four and had stopped believing in numbers.

Quarterly report, third quarter of 2023: revenue grew by 12.4 % to $3,481,900, while costs fell from $2.1 million to \
$1.97 million. Orders by region: North 1,204; South 877; East 655; West 1,019. See table 7 on page 58.

1. Peel two onions and cut them into thin rings.
2. Heat 30 ml of olive oil in a wide pan.
3. Stir for 15 minutes until they are golden; add salt.

{"id": 1042, "name": "Zoë Müller", "tags": ["new", "priority"], "active": true, "score": 0.875, "address": null}

Le petit chat dort sur la chaise près de la fenêtre. Der Zug nach München fährt um 9:45 Uhr von Gleis 3 ab. \
¿Dónde está la biblioteca? 東京は日本の首都です。

SELECT city, COUNT(*) AS visits FROM trips WHERE started_at >= '2024-01-01' GROUP BY city ORDER BY visits DESC;

Theorem. If a and b are even, then a + b is even. Proof. Write a = 2m and b = 2n; then a + b = 2(m + n). QED.
"""
