"""Ways to have actors, each behind the same few questions."""
