"""One replay store is one folder on disk: written whole, mapped for reading, checked to the last bit."""
