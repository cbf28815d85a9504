"""Documents in seven languages, each with a question whose words have other forms than the answer's; and a protocol."""

from typing import NamedTuple

PROTOCOL = """# Message Protocol

## Thread Messages

### PROCESS

Asks an actor to process a message:

```python
Message(type="PROCESS")
```

## System Management Messages

### HEARTBEAT

Checks if an actor is alive:

```python
Message(type="HEARTBEAT")
```

### RESTART

Restarts an actor after a failure, with a message to its supervisor.
"""


class Text(NamedTuple):
    text: str
    question: str
    answer: str


TEXTS = {
    "en": Text(
        "# Garden\n\nThe roses in the garden are watered every morning.\n\n# Kitchen\n\nThe bread is baked by the neighbours.",
        "When do you water a rose?",
        "roses in the garden are watered",
    ),
    "de": Text(
        "# Garten\n\nDie Rosen im Garten werden morgens gegossen.\n\n# Bau\n\nDie Häuser werden von den Nachbarn gebaut.",
        "Wer hat das Haus mit dem Nachbarn gebaut?",
        "Häuser werden von den Nachbarn gebaut",
    ),
    "fr": Text(
        "# Jardin\n\nLes roses du jardin sont arrosées le matin.\n\n# Cuisine\n\nLes voisins préparent le pain en cuisine.",
        "Quand est-ce que l'on arrose une rose ?",
        "roses du jardin sont arrosées",
    ),
    "es": Text(
        "# Jardín\n\nLas rosas del jardín se riegan cada mañana.\n\n# Cocina\n\nLos vecinos preparan los panes en la cocina.",
        "¿Quién prepara el pan para el vecino?",
        "vecinos preparan los panes",
    ),
    "it": Text(
        "# Giardino\n\nLe rose del giardino sono annaffiate al mattino.\n\n# Cucina\n\nI vicini fanno il pane in cucina.",
        "Quando si annaffia la rosa?",
        "rose del giardino sono annaffiate",
    ),
    "nl": Text(
        "# Tuin\n\nDe bloemen in de tuin worden elke ochtend begoten.\n\n# Keuken\n\nDe buren bakken het brood in de keuken.",
        "Wie heeft er de bloem in de tuinen?",
        "bloemen in de tuin",
    ),
    "pt": Text(
        "# Jardim\n\nAs rosas do jardim são regadas todas as manhãs.\n\n# Cozinha\n\nOs vizinhos preparam os pães na cozinha.",
        "Quem é o vizinho que prepara o pão?",
        "vizinhos preparam os pães",
    ),
}
