"""Probes that are learned: words without their order, an equal look at everything, half of what decides."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from workbench.audit.examples import Examples
from workbench.audit.lookups import Fitted, Predict, Table, backed, majority
from workbench.config import ModelConfig, TrainConfig
from workbench.model.transformer import Transformer
from workbench.rng import stream
from workbench.task import IGNORE, Batch, Task
from workbench.training.step import apply, gradients, learning_rate, make_optimiser

ITERATIONS = 60
"""Of the logistic regression; more change no verdict and take longer."""

CELLS = 3e8
"""Examples x words x answers that a logistic regression may take; above it, fewer examples are used."""

WIDTH, BATCH_TOKENS = 64, 3072
"""Of the network with equal attention, and the tokens of one of its training batches."""


class Regression:
    """Multinomial logistic regression on features (scikit-learn; L2 penalty 1). One class alone is answered always."""

    def __init__(self, features: Float[np.ndarray, "m features"], answers: Int[np.ndarray, " m"]) -> None:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        self.classes = np.unique(answers)
        self.model = None
        if len(self.classes) > 1:
            m = max(256, int(CELLS / (features.shape[1] * len(self.classes))))
            self.model = LogisticRegression(max_iter=ITERATIONS, tol=1e-3)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                self.model.fit(features[:m], answers[:m])

    def __call__(self, features: Float[np.ndarray, "m features"]) -> Int[np.ndarray, " m"]:
        """The likeliest class of each row."""
        if self.model is None:
            return np.full(len(features), self.classes[0])
        return self.model.predict(features)


def counts(found: Examples, visible: Bool[np.ndarray, "m pos"], d_vocab: int) -> Float[np.ndarray, "m d_vocab"]:
    """How often each token occurs among the visible ones, example by example."""
    example, position = np.nonzero(visible)
    cells = example * d_vocab + found.tokens[found.row[example], position]
    return np.bincount(cells, minlength=len(found) * d_vocab).reshape(len(found), d_vocab).astype(np.float32)


def fit_bag_of_words(train: Examples, d_vocab: int) -> Fitted:
    """Logistic regression on the counts of the visible tokens."""
    regression = Regression(counts(train, train.visible, d_vocab), train.answer)
    return Fitted(lambda found: regression(counts(found, found.visible, d_vocab)))


def fit_uniform_average(task: Task, steps: int, seed: int) -> Fitted:
    """One block whose attention is an equal look at every visible token, with an MLP, trained where scored.

    Batches are drawn afresh from the training split. There are no positions, so order enters nowhere; with them the
    network remembers training sentences instead, and misses on held-out ones what it finds without.
    """
    d_vocab = len(task.vocabulary)
    shape = ModelConfig(
        d_vocab=d_vocab, n_ctx=task.n_ctx, n_layers=1, n_heads=1, d_model=WIDTH, d_mlp=2 * WIDTH,
        positions="none", attention="uniform",
    )  # fmt: skip
    size = max(16, min(128, BATCH_TOKENS // task.n_ctx))
    config = TrainConfig(steps=steps, batch_size=size, lr=4e-3, warmup_steps=20, weight_decay=0.01)
    model = Transformer(shape, seed)
    optimiser = make_optimiser(model, config)

    def forward(tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return model(tokens, mask, path="fast")

    for step in range(steps):
        batch = task.sample(size, "train", stream(seed, "audit", "uniform", step))
        asked = torch.where(batch.scored, batch.targets, IGNORE)
        batch = Batch(batch.tokens, batch.mask, asked, batch.scored)
        gradients(model, forward, batch, None if bool(batch.mask.all()) else batch.mask, config)
        apply(optimiser, learning_rate(config, step))

    def predict(found: Examples) -> np.ndarray:
        answers = []
        tokens, mask = torch.from_numpy(found.tokens), torch.from_numpy(found.mask)
        with torch.no_grad():
            for part in torch.arange(len(tokens)).split(256):
                answers.append(forward(tokens[part], mask[part]).argmax(-1))
        return torch.cat(answers).numpy()[found.row, found.query]

    return Fitted(predict)


def fit_candidates_without_cue(
    train: Examples, d_vocab: int, cue: tuple[str, ...], candidates: tuple[str, ...]
) -> Fitted:
    """Which candidate wins, from every visible word but the cue and from which candidate stands where.

    Logistic regression; its answer is the winning candidate's token.
    """

    def tokens(found: Examples) -> np.ndarray:
        return np.stack([found.at(found.places[name][found.row]) for name in candidates], axis=1)

    def features(found: Examples) -> np.ndarray:
        words = counts(found, _without(found, cue), d_vocab)
        stands = np.zeros((len(found), len(candidates), d_vocab + 1), dtype=np.float32)
        np.put_along_axis(stands, (tokens(found) + 1)[:, :, None], 1.0, axis=2)
        return np.concatenate([words, stands.reshape(len(found), -1)], axis=1)

    right = tokens(train) == train.answer[:, None]
    decided = right.any(axis=1)
    if not decided.any():
        return Fitted(lambda found: np.full(len(found), -1), "no candidate is ever the answer")
    regression = Regression(features(train)[decided], right[decided].argmax(axis=1))

    def predict(found: Examples) -> np.ndarray:
        return np.take_along_axis(tokens(found), regression(features(found))[:, None], axis=1)[:, 0]

    return Fitted(predict)


def fit_cue_without_candidates(
    train: Examples, d_vocab: int, cue: tuple[str, ...], candidates: tuple[str, ...]
) -> Fitted:
    """The answer from every visible word but the candidates; from the cue's own word by table, where that is better.

    Which of the two is used is chosen on the training split.
    """
    regression = Regression(counts(train, _without(train, candidates), d_vocab), train.answer)

    def words(found: Examples) -> np.ndarray:
        return regression(counts(found, _without(found, candidates), d_vocab))

    def key(found: Examples) -> np.ndarray:
        total = np.zeros(len(found), dtype=np.uint64)
        for name in cue:
            total = total * np.uint64(d_vocab + 1) + (found.at(found.places[name][found.row]) + 1).astype(np.uint64)
        return total

    table, common = Table.of(key(train), train.answer), majority(train)

    def by_table(found: Examples) -> np.ndarray:
        return backed(table(key(found)), np.full(len(found), common))

    ways: dict[str, Predict] = {"all other words": words, "the cue's word": by_table}
    best = max(ways, key=lambda way: float((ways[way](train) == train.answer).mean()))
    return Fitted(ways[best], best)


def _without(found: Examples, names: tuple[str, ...]) -> Bool[np.ndarray, "m pos"]:
    """What is visible, these named positions left out."""
    visible = found.visible
    for name in names:
        visible[np.arange(len(found)), found.places[name][found.row]] = False
    return visible
