"""The family for JAX: small Optax transformations that take the loss as ``value=``, and aliases.

>>> import jax, jax.numpy as jnp, optax
>>> from surefoot.optax import adam_s
>>> optimizer = adam_s(learning_rate=0.1)
>>> loss = lambda params: jnp.sum((params - 3.0) ** 2)
>>> params = jnp.zeros(2)
>>> state = optimizer.init(params)
>>> for _ in range(200):
...     value, grads = jax.value_and_grad(loss)(params)
...     updates, state = optimizer.update(grads, state, params, value=value)
...     params = optax.apply_updates(params, updates)
>>> bool(loss(params) < 1e-2)
True
"""

from surefoot._extras import require

for _package in ("jax", "optax"):
    require(_package, extra="jax")

from surefoot.optax.averaging import AnytimeState, anytime, averaged_params  # noqa: E402
from surefoot.optax.examples import ExampleState, ExampleWeights, weigh_examples  # noqa: E402
from surefoot.optax.named import (  # noqa: E402
    adam,
    adam_cb,
    adam_cvar,
    adam_ei,
    adam_pi,
    adam_s,
    adam_ucb,
    adamw,
    adamw_cb,
    adamw_s,
    adamw_ucb,
    momentum,
    momentum_cb,
    momentum_s,
    momentum_ucb,
)
from surefoot.optax.rules import RULES, Rule, TiltState, from_objective  # noqa: E402
from surefoot.optax.tilt import scale_by_tilt, standard_normal  # noqa: E402
from surefoot.optax.wrappers import SkipState, accumulate, confidence, skip_nonfinite  # noqa: E402

__all__ = [
    "RULES",
    "AnytimeState",
    "ExampleState",
    "ExampleWeights",
    "Rule",
    "SkipState",
    "TiltState",
    "accumulate",
    "adam",
    "adam_cb",
    "adam_cvar",
    "adam_ei",
    "adam_pi",
    "adam_s",
    "adam_ucb",
    "adamw",
    "adamw_cb",
    "adamw_s",
    "adamw_ucb",
    "anytime",
    "averaged_params",
    "confidence",
    "from_objective",
    "momentum",
    "momentum_cb",
    "momentum_s",
    "momentum_ucb",
    "scale_by_tilt",
    "skip_nonfinite",
    "standard_normal",
    "weigh_examples",
]
