"""Flax: a train state that passes the loss on to the optimizer; `flax.nnx.Optimizer` does so by itself."""

from __future__ import annotations

import functools
from typing import Any

from surefoot._extras import require

optax: Any = require("optax", extra="flax")
PlainTrainState: Any = require("flax.training.train_state", extra="flax").TrainState


class TrainState(PlainTrainState):
    """``flax.training.train_state.TrainState`` whose ``apply_gradients`` takes the loss; subclass it in the same way.

    >>> import jax, jax.numpy as jnp
    >>> from surefoot.optax import adamw_s
    >>> state = TrainState.create(apply_fn=None, params={"w": jnp.zeros(2)}, tx=adamw_s(0.1))
    >>> loss = lambda params: jnp.sum((params["w"] - 3.0) ** 2)
    >>> value, grads = jax.value_and_grad(loss)(state.params)
    >>> state = state.apply_gradients(grads=grads, value=value)
    >>> int(state.step)
    1
    """

    def apply_gradients(self, *, grads: Any, value: Any = None, **kwargs: Any) -> Any:
        """Take one step, as Flax does.

        Args:
            grads: the gradients of the parameters.
            value: the loss whose gradients these are; an optimizer that does not take one ignores it.
            kwargs: more attributes to replace.
        """
        update = functools.partial(optax.with_extra_args_support(self.tx).update, value=value)
        informed = self.replace(tx=optax.GradientTransformation(self.tx.init, update))
        return PlainTrainState.apply_gradients(informed, grads=grads, **kwargs).replace(tx=self.tx)
