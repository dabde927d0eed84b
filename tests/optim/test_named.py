"""The optimizers by name."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable

import pytest
import torch
from torch.nn import Parameter

import surefoot
from surefoot import (
    AdaMaxUCB,
    AdamS,
    AdamUCB,
    AdamWCB,
    AdamWS,
    AdamWUCB,
    LossAware,
    MomentumS,
    NAdamS,
)
from surefoot.optim.named import OPTIMIZERS


@pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_help_of_a_named_optimizer_lists_its_arguments(cls: type) -> None:
    assert cls.__doc__ is not None
    assert "args" in cls.__doc__.lower()


@pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_name_keeps_its_rule(cls: type[LossAware]) -> None:
    p, other = Parameter(torch.ones(2)), "cvar" if cls.rule.name != "cvar" else "ucb"
    family = cls.__mro__[1].__name__
    with pytest.raises(ValueError, match=rf"^{cls.__name__} has the rule '{cls.rule.name}', .* take {family}\(params"):
        cls([p], rule=other)
    assert cls([p], rule=cls.rule).rule is cls.rule
    assert cls.__mro__[1]([p], rule=other).rule.name == other  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "near"), [("weight_deacy", "weight_decay"), ("learning_rate", "lr"), ("wieghting", "weighting")]
)
def test_a_misspelt_option_gets_a_suggestion(given: str, near: str) -> None:
    with pytest.raises(TypeError, match=rf"'{given}'; did you mean {near}\?; help\(AdamWS\)"):
        AdamWS([Parameter(torch.ones(2))], **{given: 0.1})
    with pytest.raises(TypeError, match=r"'momentums'; help\(AdamWS\)"):
        AdamWS([Parameter(torch.ones(2))], momentums=0.1)


# -- coming from AdamW -----------------------------------------------------------------------------------------------

ADAMW = [AdamWUCB, AdamWCB, AdamWS]


@pytest.mark.parametrize("cls", ADAMW)
def test_adamw_takes_what_torchs_takes(cls: type[LossAware]) -> None:
    """Every argument of torch.optim.AdamW, at the same place and with the same default."""
    theirs, ours = (list(inspect.signature(c).parameters.values()) for c in (torch.optim.AdamW, cls))
    positional = [x for x in theirs if x.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [(x.name, x.default) for x in ours[: len(positional)]] == [(x.name, x.default) for x in positional]
    defaults = {x.name: x.default for x in ours}
    assert all(defaults[x.name] == x.default for x in theirs)


@pytest.mark.parametrize("cls", ADAMW)
def test_adamw_has_no_l2(cls: type[LossAware]) -> None:
    p = Parameter(torch.ones(2))
    with pytest.raises(
        ValueError, match=rf"{cls.__name__} decouples its weight decay, .* take the class without the W"
    ):
        cls([p], decoupled_weight_decay=False)
    with pytest.raises(ValueError, match="decouples"):
        cls([{"params": [p], "decoupled_weight_decay": False}])
    assert cls([p], decoupled_weight_decay=True).param_groups[0]["decoupled_weight_decay"] is True


@pytest.mark.parametrize("other", [AdamS, torch.optim.Adam, torch.optim.AdamW])
def test_adamw_stays_adamw_after_loading(other: type[torch.optim.Optimizer]) -> None:
    """Options come from the checkpoint, but a class with the W never goes on with L2."""
    p = Parameter(torch.ones(2))
    state = other([p], lr=0.5).state_dict()
    if other is torch.optim.AdamW:  # as before torch 2.7
        del state["param_groups"][0]["decoupled_weight_decay"]
    optimizer = AdamWS([p])
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[0]["decoupled_weight_decay"] is True
    assert copy.deepcopy(optimizer).param_groups[0]["decoupled_weight_decay"] is True


def warnings_of(make: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    return [str(warning.message) for warning in caught]


def groups(*decays: float) -> list[dict[str, object]]:
    return [{"params": [Parameter(torch.ones(2))], "weight_decay": decay} for decay in decays]


@pytest.mark.parametrize("cls", [AdamUCB, AdamS, NAdamS, AdaMaxUCB])
def test_a_decay_of_adamws_size_that_is_l2_by_default_is_said_once(cls: type[LossAware]) -> None:
    sentence = (
        f"{cls.__name__} adds weight_decay=0.1 to the gradient, as published (L2), and weights the gradient after "
        "that: this is not AdamW's decay, and much stronger. decoupled_weight_decay=True, or AdamWS in the place of "
        "AdamS, is what torch.optim.AdamW does; decoupled_weight_decay=False keeps L2 and silences this warning"
    )
    # As nanoGPT makes its groups: matrices decay, the rest does not.
    assert warnings_of(lambda: cls(groups(0.1, 0.0))) == [sentence]
    assert warnings_of(lambda: cls(groups(0.0, 0.1, 0.1))) == [sentence]
    assert warnings_of(lambda: cls(groups(0.0), weight_decay=0.1).add_param_group(groups(0.1)[0])) == [sentence]
    assert len(warnings_of(lambda: cls([Parameter(torch.ones(2))], weight_decay=torch.tensor(0.1)))) == 1
    with pytest.warns(UserWarning, match="AdamWS") as caught:
        cls([Parameter(torch.ones(2))], weight_decay=0.01)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdamS(groups(9e-3, 1e-4)),
        lambda: AdamS(groups(0.1), decoupled_weight_decay=False),
        lambda: AdamS(groups(0.1), decoupled_weight_decay=True),
        lambda: AdamS([group | {"decoupled_weight_decay": False} for group in groups(0.1, 0.1)]),
        lambda: AdamS(groups(0.1), reference=True),  # the published decay was asked for
        lambda: AdamWS(groups(0.1)),
        lambda: MomentumS(groups(0.1)),  # as SGD
        lambda: surefoot.LossWeighted(torch.optim.AdamW(groups(0.1))),
    ],
)
def test_nothing_is_said_where_the_decay_was_chosen(make: Callable[[], object]) -> None:
    assert warnings_of(make) == []


def test_l2_by_default_is_l2_in_groups_and_checkpoints() -> None:
    with pytest.warns(UserWarning, match="AdamWS"):
        optimizer = AdamS(groups(0.1))
    assert optimizer.param_groups[0]["decoupled_weight_decay"] is False
    again = AdamS(groups(0.0))
    assert warnings_of(lambda: again.load_state_dict(optimizer.state_dict())) == []
    assert again.param_groups[0]["weight_decay"] == 0.1
