"""Pages of docs/ that are made from the code: `python -m scripts.reference` (`make reference`) writes them again."""
