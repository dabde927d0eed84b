"""The optimizers: `LossAware`, the classes by name, and a wrapper for any other optimizer."""
