"""The paper's models, layer by layer and by their numbers of parameters, and what images go through before them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from surefoot.lab.spec.builtin import CNN, MLP, CropAndFlip, LogisticRegression, Normalise, mean_and_std


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_logistic_regression():
    model = LogisticRegression()
    images = torch.randn(4, 1, 28, 28)
    assert parameters(model) == 784 * 10 + 10
    torch.testing.assert_close(model(images), F.linear(images.reshape(4, -1), model.out.weight, model.out.bias))


def test_mlp_is_784_1000_1000_10_with_relu():
    model = MLP()
    images = torch.randn(4, 784)
    assert parameters(model) == (784 + 1) * 1000 + (1000 + 1) * 1000 + (1000 + 1) * 10
    first = F.linear(images, model.first.weight, model.first.bias).clamp(min=0)
    second = F.linear(first, model.second.weight, model.second.bias).clamp(min=0)
    torch.testing.assert_close(model(images), F.linear(second, model.out.weight, model.out.bias))


def test_cnn_layers_and_sides():
    model = CNN()
    convolutions = 64 * (3 * 25 + 1) + 64 * (64 * 25 + 1) + 128 * (64 * 25 + 1)
    assert parameters(model) == convolutions + 1000 * (128 * 3 * 3 + 1) + 10 * (1000 + 1)
    sides, images = [], torch.randn(2, 3, 32, 32)
    values = images
    for index in (0, 3, 6):
        layer = model.features[index]
        values = F.conv2d(values, layer.weight, layer.bias, stride=1, padding=2).clamp(min=0)
        values = F.max_pool2d(values, 3, stride=2)
        sides.append(values.shape[-1])
    assert sides == [15, 7, 3]
    hidden = F.linear(values.reshape(2, -1), model.hidden.weight, model.hidden.bias).clamp(min=0)
    expected = F.linear(hidden, model.out.weight, model.out.bias)
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("pool_padding", "side"), [(0, 32), (1, 8)])
def test_pooling_before_rectifying_is_the_paper_s_order_bit_for_bit(pool_padding, side):
    torch.manual_seed(0)
    ours = CNN((3, side), channels=(8, 8, 8), hidden=16, pool_padding=pool_padding)
    theirs = copy.deepcopy(ours)
    for start in (0, 3, 6):
        theirs.features[start + 1], theirs.features[start + 2] = nn.ReLU(), theirs.features[start + 1]
    images = torch.randn(4, 3, side, side).round(decimals=1)  # some windows hold equal values
    for model in (ours, theirs):
        model(images).square().sum().backward()
    assert torch.equal(ours(images), theirs(images))
    for our_weight, their_weight in zip(ours.parameters(), theirs.parameters()):
        assert torch.equal(our_weight.grad, their_weight.grad)


def test_cnn_weights_and_gradients_stay_contiguous():
    model = CNN(image=(1, 8), channels=(4, 4), hidden=8)
    model(torch.randn(2, 1, 8, 8)).sum().backward()
    for parameter in model.parameters():
        assert parameter.is_contiguous()
        assert parameter.grad.is_contiguous()


@pytest.mark.parametrize("make", [MLP, CNN])
def test_dropout_draws_no_weights_and_acts_only_in_training(make):
    torch.manual_seed(0)
    plain = make()
    torch.manual_seed(0)
    dropping = make(dropout=True)
    # Paired: the same seed gives the same initial weights, with and without dropout.
    for p, q in zip(plain.parameters(), dropping.parameters(), strict=True):
        assert torch.equal(p, q)
    images = torch.randn(2, 3, 32, 32) if make is CNN else torch.randn(2, 784)
    dropping.eval()
    assert torch.equal(plain(images), dropping(images))
    dropping.train()
    assert not torch.equal(plain(images), dropping(images))


@pytest.mark.parametrize(("make", "layer"), [(MLP, "second"), (CNN, "hidden")])
def test_dropout_is_on_the_input_of_the_right_layer(make, layer):
    model, seen = make(dropout=True), []
    getattr(model, layer).register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    images = torch.randn(64, 3, 32, 32) if make is CNN else torch.randn(64, 784)
    model(images)
    model.eval()
    model(images)
    dropped, whole = seen
    alive = whole > 0
    assert 0.45 < (dropped[alive] == 0).float().mean() < 0.55
    kept = alive & (dropped != 0)
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])


def test_images_too_small_for_the_poolings():
    with pytest.raises(ValueError, match="side 8 are too small for 3 poolings with pool_padding=0"):
        CNN(image=(1, 8))
    assert CNN(image=(1, 8), pool_padding=1)(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def test_mean_and_std_are_exact_and_per_channel():
    images = torch.randint(256, (3000, 2, 5, 4), dtype=torch.uint8)
    images[:, 1] //= 4
    mean, std = mean_and_std(images)
    assert torch.equal(mean, images.double().mean((0, 2, 3)).float())
    torch.testing.assert_close(std, images.double().std((0, 2, 3), correction=0).float())


def reference_crop(image, down, right, mirrored, padding=4):
    """One image at a time, as a sentence: frame it in black, cut out, mirror."""
    framed = F.pad(image, (padding,) * 4)
    cut = framed[:, down : down + image.shape[1], right : right + image.shape[2]]
    return cut.flip(-1) if mirrored else cut


class OneDevice(TorchDispatchMode):
    """Refuses what an accelerator would: tensors of two devices in one operation."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        devices = {leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()}
        assert len(devices) < 2, func
        return func(*args, **(kwargs or {}))


def test_images_are_prepared_where_they_are():
    augment = CropAndFlip(Normalise(torch.zeros(3), torch.ones(3)))
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8, device="meta")
    for generator in (None, torch.Generator()):
        with OneDevice():
            assert augment(images, generator).device.type == "meta"


def test_crops_and_flips_are_those_of_a_plain_loop():
    # Pixels from 1: a 0 can only come from the frame.
    images = torch.randint(1, 256, (200, 3, 32, 32), dtype=torch.uint8)
    augment = CropAndFlip(Normalise(torch.zeros(3), torch.ones(3)))
    cropped = augment.crop_and_flip(images, torch.Generator().manual_seed(5))
    seen = set()
    for image, result in zip(images, cropped):
        matches = [
            (down, right, mirrored)
            for down in range(9)
            for right in range(9)
            for mirrored in (False, True)
            if torch.equal(reference_crop(image, down, right, mirrored), result)
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    downs, rights, mirrors = (set(part) for part in zip(*seen))
    assert downs == rights == set(range(9))
    assert mirrors == {False, True}
    assert len(seen) > 80  # offsets and orientations are drawn independently, for each image


def test_frame_is_black_before_normalisation():
    mean, std = torch.tensor([100.0, 50.0, 20.0]), torch.tensor([10.0, 20.0, 30.0])
    images = torch.full((50, 3, 32, 32), 200, dtype=torch.uint8)
    x = CropAndFlip(Normalise(mean, std))(images, torch.Generator().manual_seed(0))
    for channel in range(3):
        black, white = (0 - mean[channel]) / std[channel], (200 - mean[channel]) / std[channel]
        assert set(x[:, channel].unique().tolist()) == {black.item(), white.item()}
