"""Averages of the weights: how long they remember, the tensors they are made of, and the optimizer that keeps one."""
