"""The paper's claims about its experiments, each as the contrasts that decide it."""

from __future__ import annotations

from surefoot.paper.cells import Replication
from surefoot.paper.contrasts import Claim, ClaimVerdict, Contrast, Term, judge
from surefoot.paper.published import EPOCHS, METRICS, OPTIMIZERS, TITLES, Configuration, find

LR = Configuration("mnist", "lr", 128, False)
MLP, MLP_DROPOUT = (Configuration("mnist", "mlp", 128, dropout) for dropout in (False, True))
CNN, CNN_DROPOUT = (Configuration("cifar10", "cnn", 128, dropout) for dropout in (False, True))
MLP_16, CNN_16 = Configuration("mnist", "mlp", 16, False), Configuration("cifar10", "cnn", 16, False)


def against(
    configuration: Configuration,
    optimizer: str,
    metric: str,
    epoch: int,
    *,
    than: str = "Adam",
    sign: int | None = None,
    band: tuple[float, float] | None = None,
) -> Contrast:
    """One optimizer against another: better, unless another sign is given, or different by an amount."""
    statement = f"{optimizer} - {than}, {configuration.name}, {TITLES[metric]}, epoch {epoch}"
    terms = Term(1, configuration, optimizer), Term(-1, configuration, than)
    return Contrast(statement, metric, epoch, terms, _better(metric) if sign is None else sign, band)


def _gains(optimizer: str, more: Configuration, less: Configuration, metric: str, epoch: int) -> Contrast:
    """The gain over Adam in one configuration minus the gain in another."""
    terms = (
        Term(1, more, optimizer), Term(-1, more, "Adam"), Term(-1, less, optimizer), Term(1, less, "Adam"),
    )  # fmt: skip
    statement = f"{optimizer} - Adam in {more.name}, less the same in {less.name}, {TITLES[metric]}, epoch {epoch}"
    return Contrast(statement, metric, epoch, terms, _better(metric))


def _ratio(epoch: int) -> Contrast:
    """AdamS's training loss over Adam's; the band is what the published numbers allow before rounding."""
    ours, theirs = (find(MLP, name, epoch).values["train_loss"].mean for name in ("AdamS", "Adam"))
    band = ((ours - 0.0005) / (theirs + 0.0005), (ours + 0.0005) / (theirs - 0.0005))
    terms = (Term(1, MLP, "AdamS"), Term(-1, MLP, "Adam"))
    statement = f"AdamS / Adam, MLP 128, training loss, epoch {epoch}"
    return Contrast(statement, "train_loss", epoch, terms, band=band, ratio=True)


def _better(metric: str) -> int:
    return 1 if metric == "val_acc" else -1


def _dropout_contrasts() -> tuple[Contrast, ...]:
    return tuple(
        Contrast(
            f"AdamS without dropout - Adam with dropout, CNN 128, {TITLES[metric]}, epoch {epoch}",
            metric,
            epoch,
            (Term(1, CNN, "AdamS"), Term(-1, CNN_DROPOUT, "Adam")),
            _better(metric),
        )
        for epoch in EPOCHS
        for metric in METRICS
    )


def claims() -> tuple[Claim, ...]:
    """The paper's claims about its experiments.

    >>> len(claims()), claims()[0].title
    (15, 'Adam is the best on logistic regression')
    """
    return (*_on_mnist(), *_on_cifar10(), *_across())


def _on_mnist() -> tuple[Claim, ...]:
    return (
        Claim(
            "Adam is the best on logistic regression",
            "Discussion: best across the training metrics",
            tuple(against(LR, name, "train_loss", epoch, sign=1) for epoch in EPOCHS for name in OPTIMIZERS[1:]),
            "Tested on the training loss, the one training metric of the tables.",
        ),
        Claim(
            "AdamS and AdamUCB reach a lower training and validation loss than Adam on the MLP",
            "Discussion, of the MLP without dropout",
            tuple(
                against(MLP, name, metric, epoch)
                for epoch in EPOCHS
                for name in ("AdamUCB", "AdamS")
                for metric in ("train_loss", "val_loss")
            ),
        ),
        Claim(
            "AdamS has half of Adam's training loss at epoch 20 and a third at epoch 45 on the MLP",
            "Discussion, of the MLP without dropout",
            (_ratio(20), _ratio(45)),
            "Ours is the geometric mean over seeds of the ratio in each; the published one a ratio of two means.",
        ),
        Claim(
            "AdamS is better than Adam on the MLP with dropout too",
            "Appendix, Discussion",
            tuple(against(MLP_DROPOUT, "AdamS", metric, epoch) for epoch in EPOCHS for metric in METRICS),
        ),
        Claim(
            "AdamS and Adam are about the same on the MLP in batches of 16",
            "Appendix, Discussion",
            tuple(against(MLP_16, "AdamS", "val_acc", epoch, band=(-0.5, 0.5)) for epoch in EPOCHS),
            "A difference of less than half a point of validation accuracy counts as none.",
        ),
    )


def _on_cifar10() -> tuple[Claim, ...]:
    variants, regular = OPTIMIZERS[1:], ("AdamCB", "AdamS")
    return (
        Claim(
            "All three are faster than Adam on the CNN: better at epoch 3",
            "Discussion, of the CNN without dropout",
            tuple(against(CNN, name, metric, 3) for name in variants for metric in METRICS),
        ),
        Claim(
            "The improvement on the CNN at epoch 3 is about 6% of validation accuracy",
            "Discussion, of the CNN without dropout",
            (against(CNN, "AdamS", "val_acc", 3, band=(5.0, 7.0)),),
            "Tested on AdamS, the best of the three in the table; 5 to 7 counts as about 6.",
        ),
        Claim(
            "All three keep a better validation loss than Adam on the CNN",
            "Discussion, of the CNN without dropout",
            tuple(against(CNN, name, "val_loss", epoch) for epoch in (20, 45) for name in variants),
        ),
        Claim(
            "AdamCB and AdamS are better than AdamUCB on the CNN",
            "Discussion, of the CNN without dropout",
            tuple(against(CNN, name, "val_acc", epoch, than="AdamUCB") for epoch in EPOCHS for name in regular),
        ),
        Claim(
            "AdamCB and AdamS are better than Adam on the CNN with dropout too",
            "Discussion, of the CNN with dropout",
            tuple(against(CNN_DROPOUT, name, "val_acc", epoch) for epoch in EPOCHS for name in regular),
        ),
        Claim(
            "The improvement on the CNN with dropout at epoch 3 is about 2% of validation accuracy",
            "Discussion, of the CNN with dropout",
            (against(CNN_DROPOUT, "AdamCB", "val_acc", 3, band=(1.0, 3.0)),),
            "Tested on AdamCB, the better of the two in the table; 1 to 3 counts as about 2.",
        ),
        Claim(
            "All three are faster than Adam on the CNN in batches of 16: better at epoch 3",
            "Appendix, Discussion",
            tuple(against(CNN_16, name, metric, 3) for name in variants for metric in METRICS),
        ),
    )


def _across() -> tuple[Claim, ...]:
    """The claims that compare one configuration with another."""
    return (
        Claim(
            "AdamS without dropout is better than Adam with it",
            "Discussion: faster training and better validation error than dropout",
            _dropout_contrasts(),
            "A training loss under dropout is measured with units dropped, so that comparison favours AdamS.",
        ),
        Claim(
            "The gains are smaller with dropout",
            "Discussion, of the CNN at epoch 3 and of the MLP",
            (
                *(_gains(name, CNN, CNN_DROPOUT, "val_acc", 3) for name in ("AdamCB", "AdamS")),
                *(_gains("AdamS", MLP, MLP_DROPOUT, "val_loss", epoch) for epoch in (20, 45)),
            ),
        ),
        Claim(
            "On CIFAR-10 the gains are larger at batch size 16",
            "Appendix, Discussion",
            tuple(_gains(name, CNN_16, CNN, "val_acc", epoch) for epoch in EPOCHS for name in OPTIMIZERS[1:]),
        ),
    )


def judge_all(replication: Replication, recipe: str = "default") -> list[ClaimVerdict]:
    """The verdicts on all claims."""
    return [judge(claim, replication, recipe) for claim in claims()]
