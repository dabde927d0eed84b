"""Train a small network in JAX with AdamS: the loss goes to the optimizer as ``value=``, and nothing else changes."""

import jax
import jax.numpy as jnp
import optax

from surefoot.optax import adam_s, confidence

STEPS, BATCH, HIDDEN = 1000, 64, 32


def spirals(key, points):
    """Two noisy spirals, one per class."""
    angle_key, noise_key = jax.random.split(key)
    angle = 3 * jnp.pi * jnp.sqrt(jax.random.uniform(angle_key, (points,)))
    label = jnp.arange(points) % 2
    rotated = angle + jnp.pi * label
    inputs = jnp.stack([angle * jnp.cos(rotated), angle * jnp.sin(rotated)], axis=1) / (3 * jnp.pi)
    return inputs + 0.02 * jax.random.normal(noise_key, inputs.shape), label


def init(key):
    sizes = [2, HIDDEN, HIDDEN, 2]
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (a, b)) * jnp.sqrt(2 / a), "b": jnp.zeros(b)}
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def logits(params, x):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


def train(optimizer, seed=0):
    """Return the trained parameters and the optimizer's state; the whole run is one compiled loop."""
    data_key, init_key, batch_key = jax.random.split(jax.random.key(seed), 3)
    inputs, labels = spirals(data_key, 2000)
    params = init(init_key)

    def step(carry, key):
        params, state = carry
        chosen = jax.random.randint(key, (BATCH,), 0, len(inputs))
        value, grads = jax.value_and_grad(loss)(params, inputs[chosen], labels[chosen])
        updates, state = optimizer.update(grads, state, params, value=value)  # the one line that changes
        return (optax.apply_updates(params, updates), state), value

    start = params, optimizer.init(params)
    (params, state), _ = jax.lax.scan(step, start, jax.random.split(batch_key, STEPS))
    accuracy = (logits(params, inputs).argmax(1) == labels).mean()
    return float(accuracy), state


def main():
    schedule = optax.cosine_decay_schedule(1e-2, STEPS)
    plain = optax.with_extra_args_support(optax.adam(schedule))
    for name, optimizer in [("adam", plain), ("adam_s", adam_s(schedule, eta=0.1))]:
        accuracy, state = train(optimizer)
        print(f"{name}: training accuracy {accuracy:.3f}")
    stats = confidence(state)[0]
    print("last step:", ", ".join(f"{key} {float(value):.3g}" for key, value in stats.items()))
    return accuracy


if __name__ == "__main__":
    main()
