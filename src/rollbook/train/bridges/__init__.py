"""Batches in the form that a trainer of language models takes: TRL, verl, prime-rl and Tinker.

A bridge gives plain tensors, arrays or lists with the names of the trainer, and refuses a batch in which a field does
not mean what the trainer takes it for. `trl_recording` goes the other way: it records what a TRL trainer learns from.
"""
