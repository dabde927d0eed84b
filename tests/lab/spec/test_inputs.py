"""What happens to inputs before a model sees them: normalisation, crops and flips, subsets."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from surefoot.lab.spec.inputs import CropAndFlip, Normalise, choose_subset, mean_and_std


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
        devices = {one.device for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor) and one.dim()}
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


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_subset_keeps_the_shares_of_the_classes(seed):
    targets = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)[torch.randperm(100)]
    chosen = choose_subset(targets, 33, seed)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert targets[chosen].bincount().tolist() == [16, 10, 7]  # of 16.5, 9.9 and 6.6
    assert len(chosen) == 33
    assert torch.equal(chosen, choose_subset(targets, 33, seed))


def test_subset_without_seed_is_the_first_of_each_class_and_with_one_is_not():
    targets = torch.arange(100) % 10
    assert choose_subset(targets, 20).tolist() == list(range(20))
    assert choose_subset(targets, 20, seed=1).tolist() != choose_subset(targets, 20, seed=2).tolist()


def test_subset_of_regression_targets():
    assert choose_subset(torch.randn(10), 3).tolist() == [0, 1, 2]
    assert len(set(choose_subset(torch.randn(10, 2), 4, seed=0).tolist())) == 4
