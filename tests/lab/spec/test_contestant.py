"""Contestants: one line per optimizer, read, named and built."""

from __future__ import annotations

import functools
import linecache
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import surefoot
from surefoot.lab.spec.code import fingerprint
from surefoot.lab.spec.contestant import Contestant, accepted_options, load_class, parse_all


def weights() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(3))]


@pytest.mark.parametrize(
    ("spec", "label", "cls", "kwargs"),
    [
        ("adam", "Adam", torch.optim.Adam, {}),
        ("AdamW", "AdamW", torch.optim.AdamW, {}),
        ("adams:eta=1e-4", "AdamS eta=0.0001", surefoot.AdamS, {"eta": 1e-4}),
        ("adamws:weight_decay=0.1", "AdamWS weight_decay=0.1", surefoot.AdamWS, {"weight_decay": 0.1}),
        ("AdamWUCB", "AdamWUCB", surefoot.AdamWUCB, {}),
        ("adamwcb", "AdamWCB", surefoot.AdamWCB, {}),
        (
            "adamucb:eta=0.01,weighting=unit,reference=True",
            "AdamUCB eta=0.01 weighting=unit reference=True",
            surefoot.AdamUCB,
            {"eta": 0.01, "weighting": "unit", "reference": True},
        ),
        ("sgd:momentum=0.9,nesterov=True", "SGD momentum=0.9 nesterov=True", torch.optim.SGD, None),
        ("adam:betas=(0.9,0.99),lr=3e-4", "Adam betas=(0.9,0.99) lr=0.0003", torch.optim.Adam, None),
        ("torch.optim.AdamW:lr=3e-4,weight_decay=0.01", "AdamW lr=0.0003 weight_decay=0.01", torch.optim.AdamW, None),
        ("torch.optim:AdamW", "AdamW", torch.optim.AdamW, {}),
        ("torch.optim:AdamW:lr=1", "AdamW lr=1", torch.optim.AdamW, {"lr": 1}),
        (" adam:lr=-0.5 ", "Adam lr=-0.5", torch.optim.Adam, {"lr": -0.5}),
        (
            "adam:amsgrad=false,maximize=No,capturable=OFF,foreach=none",
            "Adam amsgrad=False maximize=False capturable=False foreach=None",
            torch.optim.Adam,
            {"amsgrad": False, "maximize": False, "capturable": False, "foreach": None},
        ),
        (
            "adams:amsgrad=true,maximize=YES,reference=on,weighting='no'",
            "AdamS amsgrad=True maximize=True reference=True weighting=no",
            surefoot.AdamS,
            {"amsgrad": True, "maximize": True, "reference": True, "weighting": "no"},
        ),
    ],
)
def test_specs_are_read(spec: str, label: str, cls: type, kwargs: dict | None) -> None:
    contestant = Contestant.parse(spec)
    assert contestant.label == label
    assert contestant.cls is cls
    assert kwargs is None or contestant.kwargs == kwargs


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("adms", "did you mean"),
        ("quite-another", "unknown optimizer 'quite-another'"),
        ("adams:eta", "cannot read the options of 'adams:eta'; give eta a value, like 'adams:eta=1e-4'"),
        ("adams:0.1", "cannot read the options"),
        ("adam:lr=open('x')", "cannot read the options"),
        ("adam:lr=1,lr=2", "cannot read the options"),
        ("adam:**{}", "cannot read the options"),
        ("torch.optim.Nothing", "cannot import the optimizer 'torch.optim.Nothing'"),
        ("no_such_package.Thing", "No module named 'no_such_package'"),
        ("torch.__version__", "is not an optimizer class"),
        ("torch.nn.Linear", "'torch.nn.Linear' is not an optimizer class"),
        ("adam:schedule=stairs", "unknown schedule 'stairs'"),
        ("", "cannot read the optimizer"),
        ("adam:lr=abc", "'adam:lr=abc': lr must be a finite number, not abc"),
        ("adam:lr=nan", "'adam:lr=nan': lr must be a finite number, not nan"),
        ("adam:lr=1e400", "'adam:lr=1e400': lr must be a finite number, not inf"),
        ("adam:lr=yes", "'adam:lr=yes': lr must be a finite number, not True"),
        ("math.sqrt", "'math.sqrt' is not an optimizer class but"),
        ("mine.py", "'mine.py' is a file and not yet an optimizer; name the class in it, like 'mine.py:MyClass'"),
        ("gone.py:Mine", "cannot import the optimizer 'gone.py:Mine': there is no file "),
        ("..Adam", "'.' is not the name of a module"),
    ],
)
def test_a_spec_that_cannot_be_read_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        Contestant.parse(spec)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def (:", "SyntaxError: "),
        ("undefined_thing", "NameError: name 'undefined_thing' is not defined"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused_until_corrected(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    before = set(sys.modules)
    with pytest.raises(ValueError, match=rf"cannot import the optimizer '.*bad.py:Mine': .*\({message}"):
        Contestant.parse(f"{path}:Mine")
    assert not [name for name in set(sys.modules) - before if name.startswith("surefoot_contestant")]
    path.write_text("import torch\nclass Mine(torch.optim.SGD):\n    pass\n")
    assert Contestant.parse(f"{path}:Mine").cls.__name__ == "Mine"


def test_no_number_is_refused_where_a_class_needs_one() -> None:
    with pytest.raises(ValueError, match="'adam:lr=None': lr must be a number, not None; write it like lr=1e-3"):
        Contestant.parse("adam:lr=None").check(lr=1e-3)
    Contestant.parse("adams:eta=none").check(lr=1e-3)  # the rule's own


def test_every_surefoot_optimizer_has_its_short_name() -> None:
    named = [name for name in surefoot.__all__ if name.startswith(("Ada", "Momentum", "NAdam"))]
    assert len(named) >= 10
    for name in named:
        assert Contestant.parse(name.lower()).cls is getattr(surefoot, name)


def test_defaults_reach_those_who_accept_them_and_lose_against_own_options() -> None:
    assert Contestant.parse("adam:lr=0.5").resolve(lr=1e-3, weight_decay=1e-4) == {
        "lr": 0.5,
        "weight_decay": 1e-4,
        "fused": True,
    }
    assert "weight_decay" not in Contestant.parse("lbfgs").resolve(lr=1e-3, weight_decay=1e-4)
    assert "weight_decay" not in Contestant.parse("adam").resolve(lr=1e-3, weight_decay=None)
    assert "fused" not in Contestant.parse("adam:foreach=True").resolve(lr=1e-3)
    assert Contestant.parse("adam:fused=False").resolve(lr=1e-3)["fused"] is False


def test_a_default_eta_is_recorded() -> None:
    assert Contestant.parse("adamucb").resolve(lr=1e-3)["eta"] == surefoot.AdamUCB(weights()).defaults["eta"]
    assert Contestant.parse("adamucb:eta=7").resolve(lr=1e-3)["eta"] == 7


def test_noise_follows_the_seed_of_the_run() -> None:
    assert Contestant.parse("adams").build(weights(), seed=5, lr=1e-3).defaults["seed"] == 5
    assert Contestant.parse("adams:seed=9").build(weights(), seed=5, lr=1e-3).defaults["seed"] == 9


def test_an_option_the_class_does_not_have_names_the_contestant() -> None:
    with pytest.raises(TypeError, match=r"'adam:speed=2'.*speed"):
        Contestant.parse("adam:speed=2").build(weights(), lr=1e-3)


def test_options_handed_to_a_parent_are_found() -> None:
    class Child(torch.optim.SGD):
        def __init__(self, params: object, twist: float = 1.0, **kwargs: object) -> None:
            super().__init__(params, **kwargs)

    assert {"twist", "lr", "momentum"} <= accepted_options(Child)
    assert "params" not in accepted_options(Child)


def test_labels_are_made_distinct(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import torch\nclass Adam(torch.optim.Adam):\n    pass\n")
    specs = ["adam", f"{path}:Adam", "adam:lr=0.00100000001", "adam:lr=0.001"]
    labels = [contestant.label for contestant in parse_all(specs)]
    assert len(set(labels)) == 4
    assert labels[0] == "Adam (torch.optim.Adam)"
    assert labels[1] == f"Adam ({path}:Adam)"
    assert labels[2].startswith("Adam lr=0.001")


@pytest.mark.parametrize("second", ["adam", "torch.optim.Adam", "torch.optim:Adam", torch.optim.Adam])
def test_the_same_contestant_twice_is_refused(second: object) -> None:
    for none in ([], "adam"):
        with pytest.raises(ValueError, match="give a list of at least one optimizer"):
            parse_all(none)
    with pytest.raises(ValueError, match="are the same"):
        parse_all(["adam", second])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "give a list of at least one optimizer, such as .*, not 5"),
        (None, "give a list of at least one optimizer, such as .*, not None"),
        ([5], "5 is not an optimizer to compare: give a line such as"),
        ([torch.nn.Linear], "Linear.* is not an optimizer to compare: give a line such as"),
        ([lambda params: torch.optim.SGD(params)], "a function hides its options; write Contestant.create"),
        ([torch.optim.SGD(weights())], "every run builds its own; give the class SGD"),
    ],
)
def test_what_is_no_optimizer_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_all(given)


def test_a_file_of_ones_own_is_a_contestant_and_editing_it_makes_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import torch\nclass Slow(torch.optim.SGD):\n    pass\n")
    contestant = Contestant.parse(f"{path}:Slow:lr=0.25")
    assert contestant.build(weights()).param_groups[0]["lr"] == 0.25
    before = contestant.code()
    path.write_text(path.read_text().replace("pass", "twist = 2"))
    assert contestant.code() == before  # of what is loaded, and will be trained with
    two = Contestant.parse(f"{path}:Slow:lr=0.25")
    assert two.code() != before
    assert two.cls.twist == 2
    assert Contestant.parse(f"{path}:Slow").cls is two.cls
    assert Contestant.parse("adam").code() == Contestant.parse("adams").code() == ""


def test_third_party_optimizers_are_contestants() -> None:
    contestant = Contestant.parse("schedulefree.AdamWScheduleFree:warmup_steps=5")
    assert contestant.build(weights(), lr=0.5, weight_decay=1e-4).param_groups[0]["warmup_steps"] == 5


def test_a_partial_has_no_name_to_show() -> None:
    with pytest.raises(ValueError, match="has no name to show in the results; give its class"):
        Contestant.create("mine", functools.partial(torch.optim.SGD, lr=0.1))  # type: ignore[arg-type]


def test_a_class_can_be_given_in_code() -> None:
    class Mine(torch.optim.SGD):
        pass

    contestant = Contestant.create("my own", Mine, {"lr": 0.5, "schedule": "cosine"})
    assert (contestant.label, contestant.schedule, contestant.cls) == ("my own", "cosine", Mine)
    assert Contestant.create(None, torch.optim.Adam).class_path == "torch.optim.Adam"
    assert load_class("torch.optim.Adam") is torch.optim.Adam


def test_code_of_a_script_goes_by_its_own_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    lines = "import torch\nclass Mine(torch.optim.SGD):\n    twist = {}\nseeds = {}\n"
    digests = []
    for twist, seeds in [(1, 5), (1, 10), (2, 10)]:
        script.write_text(lines.format(twist, seeds))
        linecache.checkcache()
        module = types.ModuleType("__main__")
        module.__file__ = str(script)
        monkeypatch.setitem(sys.modules, "__main__", module)
        exec(compile(script.read_text(), str(script), "exec"), vars(module))
        digests.append(fingerprint(module.Mine))
    assert digests[0] == digests[1] != digests[2]


def test_options_of_the_lab():
    contestant = Contestant.parse("adam:lr=0.1,average=poly:8,schedule=wsd,warmup=10")
    assert (contestant.average, contestant.schedule, contestant.warmup) == ("poly:8", "wsd", 10)
    assert contestant.kwargs == {"lr": 0.1}
    again = Contestant.parse(contestant.with_options({"lr": 0.2}).spec.replace("lr=0.1,", ""))
    assert (again.average, again.kwargs) == ("poly:8", {"lr": 0.2})
    assert Contestant.parse("adam:average='two-tailed'").average == "two-tailed"
    assert len(parse_all(["adam", "adam:average=anytime", "adam:average=poly:8", "adam:warmup=3"])) == 4


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("adam:schedule=exp", "unknown schedule 'exp'; choose cosine or linear or wsd or invsqrt or anytime"),
        ("adam:warmup=0.5", "warmup must be a whole number of steps, such as warmup=100, not 0.5"),
        ("adam:average=poly:x", "unknown average 'poly:x'; choose anytime"),
        ("adam:average=swa", "unknown average 'swa'; choose anytime"),
    ],
)
def test_options_of_the_lab_that_mean_nothing(spec, message):
    with pytest.raises(ValueError, match=message):
        Contestant.parse(spec)


def test_an_optimizer_with_a_warm_up_of_its_own_gets_it():
    class Own(torch.optim.SGD):
        def __init__(self, params, lr=0.1, warmup=0):
            super().__init__(params, lr=lr)

    contestant = Contestant.create(None, Own, {"warmup": 3})
    assert (contestant.warmup, contestant.kwargs) == (0, {"warmup": 3})


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("adam:learning_rate=1", "Adam has no option 'learning_rate'; did you mean lr?"),
        ("adams:wd=0.1", "AdamS has no option 'wd'; did you mean weight_decay?"),
        ("sgd:averge=anytime", "SGD has no option 'averge'; did you mean average?"),
        ("sgd:epsilon=1", "SGD has no option 'epsilon'; it has "),
    ],
)
def test_an_unknown_option_has_a_suggestion(spec: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)):
        Contestant.parse(spec).check()
