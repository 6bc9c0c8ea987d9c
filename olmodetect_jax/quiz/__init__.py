"""Four rewordings of a text, the wrong answers of DCQ's quiz: where they are kept, and what makes them."""
