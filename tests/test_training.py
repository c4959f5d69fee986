"""Training: the same bits whatever happens on the way, and clear errors where it cannot go on."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.tiny_task import Successor
from workbench import runs, storage
from workbench.config import ModelConfig, TrainConfig
from workbench.errors import WorkbenchError
from workbench.model.transformer import Transformer
from workbench.rng import stream
from workbench.training import Progress, loop, require_trainable, resume, train
from workbench.training.checkpoints import checkpoint_steps
from workbench.training.execution import resolve_device, use_threads
from workbench.training.progress import bar, describe
from workbench.training.step import apply, gradients, head_penalty, learning_rate, make_optimiser

MODEL = ModelConfig(d_vocab=7, n_ctx=6, n_layers=1, n_heads=2, d_model=8)
TRAIN = TrainConfig(steps=8, batch_size=4, lr=0.01, warmup_steps=2, head_sparsity=0.1)


class Killed(BaseException):
    """Stands for the end of the process: nothing may catch it."""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def often(monkeypatch):
    """Report and write the state after every step."""
    monkeypatch.setattr(loop, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of a training that nothing stopped."""
    return train(Successor(), MODEL, TRAIN, 3, tmp_path_factory.mktemp("whole") / "run").folder


# ---------------------------------------------------------------- the update


def test_learning_rate_rises_linearly_then_stays():
    config = TrainConfig(lr=0.4, warmup_steps=4)
    assert [learning_rate(config, step) for step in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert learning_rate(TrainConfig(lr=0.4, warmup_steps=0), 0) == 0.4


def test_head_penalty_sums_the_norm_of_each_head_and_is_flat_at_zero():
    model = Transformer(dataclasses.replace(MODEL, n_layers=2))
    with torch.no_grad():
        for block in model.blocks:
            block.attn.W_O.zero_()
        model.blocks[0].attn.W_O[1, 0, :2] = torch.tensor([3.0, 4.0])
        model.blocks[1].attn.W_O[0, 1, 0] = -2.0
    penalty = head_penalty(model)
    assert penalty.item() == 7.0
    penalty.backward()
    assert model.blocks[0].attn.W_O.grad[1, 0, :2].tolist() == pytest.approx([0.6, 0.8])
    assert model.blocks[1].attn.W_O.grad[0, 1, 0] == -1.0
    assert not model.blocks[0].attn.W_O.grad[0].any()  # zeros, and no NaN


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_update_equals_the_formulas_written_out(positions):
    """One step of AdamW with clipping, decay on matrices only and the penalty, against plain arithmetic."""
    config = TrainConfig(lr=0.1, warmup_steps=0, weight_decay=0.5, grad_clip=0.3, head_sparsity=0.2)
    model = Transformer(dataclasses.replace(MODEL, positions=positions), 1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    task = Successor(padded=True)
    batch = task.sample(5, "train", stream(0, "train", 0))

    logits = model(batch.tokens, batch.mask, path="fast")
    chosen = logits.log_softmax(-1).gather(-1, batch.targets.clamp(min=0)[..., None])[..., 0]
    plain = -chosen[batch.mask].mean()
    norms = sum(head.pow(2).sum().sqrt() for block in model.blocks for head in block.attn.W_O)
    grads = dict(zip(before, torch.autograd.grad(plain + 0.2 * norms, list(model.parameters())), strict=True))
    size = math.sqrt(sum(float(g.pow(2).sum()) for g in grads.values()))
    assert size > config.grad_clip  # else clipping is not tested

    optimiser = make_optimiser(model, config)
    loss, accuracy, norm = gradients(
        model, lambda tokens, mask: model(tokens, mask, path="fast"), batch, batch.mask, config
    )
    # AdamW's first step hardly depends on the gradient's size: what was clipped is looked at itself.
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, grads[name] * (config.grad_clip / size), rtol=1e-3, atol=1e-7)
    apply(optimiser, 0.1)
    assert float(loss) == pytest.approx(plain.item(), rel=1e-5)  # the penalty is not in it
    assert float(norm) == pytest.approx(size, rel=1e-4)
    right = (logits.argmax(-1) == batch.targets)[batch.mask]
    assert float(accuracy) == pytest.approx(float(right.float().mean()))
    for name, p in model.named_parameters():
        g = grads[name] * (config.grad_clip / size)
        decay = 0.5 if name.rpartition(".")[2].startswith("W_") else 0.0
        # After one step both bias-corrected moments are g and g².
        want = before[name] * (1 - 0.1 * decay) - 0.1 * g / (g.abs() + 1e-8)
        settled = g.abs() > 1e-5  # where g is rounding error its sign is too
        torch.testing.assert_close(p.detach()[settled], want[settled], rtol=1e-4, atol=1e-4)
    assert {name for name in before if "W_" in name} > {"embed.W_E", "unembed.W_U", "blocks.0.attn.W_Q"}


def test_accuracy_is_that_of_the_scored_positions_alone():
    """Targets are made so that every even position is right and every odd one wrong."""
    model = Transformer(MODEL, 1)
    batch = Successor().sample(5, "train", stream(0, "train", 0))
    said = model(batch.tokens, path="fast").argmax(-1)
    even = torch.arange(batch.tokens.shape[1]) % 2 == 0
    targets = torch.where(even, said, (said + 1) % MODEL.d_vocab)
    for places, want in ((even, 1.0), (~even, 0.0)):
        given = dataclasses.replace(batch, targets=targets, scored=places.expand(batch.tokens.shape))
        forward = functools.partial(model, path="fast")
        assert float(gradients(model, forward, given, None, TrainConfig())[1]) == want


def test_penalty_lets_a_head_that_is_not_needed_fall_idle(tmp_path):
    """The successor needs no attention: under the penalty the heads' outputs shrink, without it they do not."""
    sizes = {}
    for weight in (0.0, 1.0):
        config = dataclasses.replace(TRAIN, steps=60, head_sparsity=weight, weight_decay=0.0)
        model = train(Successor(), MODEL, config, 0, tmp_path / str(weight)).load_model()
        sizes[weight] = head_penalty(model).item()
    assert sizes[1.0] < 0.2 * sizes[0.0]


def test_it_learns(tmp_path):
    run = train(Successor(), MODEL, dataclasses.replace(TRAIN, steps=200, head_sparsity=0.0), 0, tmp_path / "run")
    table = run.training_table()
    assert table.loss[0] > 1.5
    assert table.loss.iloc[-1] < 0.1
    assert table.accuracy.iloc[-1] == 1.0


@pytest.mark.parametrize("task", [Successor(padded=True), Successor(known=False)])
def test_bfloat16_computes_in_half_and_keeps_weights_whole(tmp_path, task):
    half = dataclasses.replace(TRAIN, precision="bfloat16")
    run = train(task, MODEL, half, 0, tmp_path / "half")
    full = train(task, MODEL, TRAIN, 0, tmp_path / "full")
    a, b = run.training_table(), full.training_table()
    assert {p.dtype for p in run.load_model().state_dict().values()} == {torch.float32}
    assert abs(a.loss - b.loss).max() < 0.05
    assert (a.loss != b.loss).any()
    assert a.excess.isna().all() == (task.ceiling() is None)


# ---------------------------------------------------------------- checkpoints (case 26)


def test_checkpoint_steps():
    assert checkpoint_steps(1) == (0, 1)
    steps = checkpoint_steps(600)
    assert 25 <= len(steps) <= 30
    assert steps[:8] == (0, 1, 2, 3, 4, 5, 6, 7)
    assert steps[-1] == 600
    assert all(b / a <= 1.25 for a, b in itertools.pairwise(steps) if a >= 9)
    for total in (2, 3, 10, 4000):
        steps = checkpoint_steps(total)
        assert list(steps) == sorted(set(steps))
        assert (steps[0], steps[-1]) == (0, total)
        assert len(steps) <= 34


def test_each_checkpoint_is_its_own_file_with_its_own_weights(whole):
    """Case 26: n saves give n distinct checkpoints; the first is the initial model, the last the trained one."""
    run = runs.open_run(whole)
    kept = run.checkpoints()
    assert [c.step for c in kept] == list(checkpoint_steps(TRAIN.steps))
    assert [c.path.name for c in kept][:2] == ["step-00000000.safetensors", "step-00000001.safetensors"]
    assert len({c.path.read_bytes() for c in kept}) == len(kept)
    first, last = run.load_checkpoint(0), run.load_checkpoint(TRAIN.steps)
    for name, weight in Transformer(MODEL, 3).state_dict().items():
        assert torch.equal(first.state_dict()[name], weight)
    for name, weight in run.load_model().state_dict().items():
        assert torch.equal(last.state_dict()[name], weight)


def test_table_row_is_of_the_checkpoint_of_that_step(whole):
    run = runs.open_run(whole)
    table = run.training_table()
    assert list(table.columns) == ["step", "loss", "excess", "accuracy", "grad_norm", "lr"]
    assert list(table.step) == list(range(TRAIN.steps))
    for step in (0, 2, 5):
        batch = Successor().sample(TRAIN.batch_size, "train", stream(3, "train", step))
        logits = run.load_checkpoint(step)(batch.tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        assert table.loss[step] == pytest.approx(loss.item(), rel=1e-5)
        assert table.excess[step] == table.loss[step]  # the ceiling is 0
        assert table.lr[step] == learning_rate(TRAIN, step)


# ---------------------------------------------------------------- the same bits (cases 27, 28, 31)


def test_same_spec_same_bits_and_another_seed_others(whole, tmp_path):
    """Case 27, and nothing depends on torch's global generator."""
    torch.manual_seed(1)
    again = train(Successor(), MODEL, TRAIN, 3, tmp_path / "again")
    assert contents(again.folder) == contents(whole)
    state = torch.get_rng_state()
    other = train(Successor(), MODEL, TRAIN, 4, tmp_path / "other")
    assert torch.equal(state, torch.get_rng_state())
    assert other.hash != again.hash


def test_neighbouring_seeds_share_nothing(tmp_path):
    """Case 28: batches and initial weights of seeds 0 and 1, at any two steps, are unrelated."""
    draws = {(s, k): Successor().sample(64, "train", stream(s, "train", k)).tokens for s in (0, 1) for k in range(4)}
    keys = list(draws)
    for i, a in enumerate(keys):
        for b in keys[i + 1 :]:
            assert abs(float((draws[a] == draws[b]).float().mean()) - 1 / 6) < 0.1
    weights = [dict(Transformer(MODEL, seed).named_parameters()) for seed in (0, 1)]
    first, second = (torch.cat([p.detach().flatten() for name, p in w.items() if "W_" in name]) for w in weights)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.2


def test_stopped_after_any_step_it_ends_with_the_same_bits(often, whole, tmp_path):
    def stop_at(step):
        def report(p: Progress) -> None:
            if p.step == step:
                raise Killed

        return report

    for step in range(1, TRAIN.steps + 1):
        folder = tmp_path / str(step)
        with pytest.raises(Killed):
            train(Successor(), MODEL, TRAIN, 3, folder, progress=stop_at(step))
        assert not (folder / "run.json").exists()
        train(Successor(), MODEL, TRAIN, 3, folder)
        assert contents(folder) == contents(whole), step


def test_killed_at_any_write_it_ends_with_the_same_bits(often, whole, tmp_path, monkeypatch):
    """Dies just before, and just after, every single rename and removal that a training does."""
    real = {(os, "replace"): os.replace, (storage.shutil, "rmtree"): storage.shutil.rmtree}
    small = dataclasses.replace(TRAIN, steps=3)
    reference = contents(train(Successor(), MODEL, small, 3, tmp_path / "reference").folder)

    def attempt(folder: Path, fatal: int, after: bool) -> bool:
        count = 0

        def deadly(function):
            def call(*args):
                nonlocal count
                count += 1
                if count == fatal and not after:
                    raise Killed
                result = function(*args)
                if count == fatal:
                    raise Killed
                return result

            return call

        with monkeypatch.context() as patch:
            for (owner, name), function in real.items():
                patch.setattr(owner, name, deadly(function))
            try:
                train(Successor(), MODEL, small, 3, folder)
            except Killed:
                return True
        return False

    deaths = 0
    for after in (False, True):
        for fatal in range(1, 100):
            folder = tmp_path / f"{after}-{fatal}"
            if not attempt(folder, fatal, after):
                break
            deaths += 1
            assert train(Successor(), MODEL, small, 3, folder).folder == folder
            assert contents(folder) == reference, (fatal, after)
    assert deaths > 25


def test_kill_9(tmp_path):
    """A real process, really killed; the same call goes on and ends as if nothing had been."""
    config = dataclasses.replace(TRAIN, steps=300)
    program = f"""
import time
from tests.test_training import MODEL, Successor, dataclasses, TRAIN
from workbench.training import loop, train
loop.REFRESH_SECONDS, loop.SAVE_SECONDS = 0.0, 0.02
train(Successor(), MODEL, dataclasses.replace(TRAIN, steps=300), 3, {str(tmp_path / "run")!r},
      progress=lambda p: time.sleep(0.01 if p.step > 50 else 0))
"""
    child = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parent.parent)
    limit = time.monotonic() + 120
    while not [p for p in (tmp_path / "run" / "resume").glob("state-*.safetensors") if p.name >= "state-00000060"]:
        assert child.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    with pytest.raises(WorkbenchError, match=r"unfinished run.*same train command"):
        runs.open_run(tmp_path / "run")
    begun: list[int] = []
    train(Successor(), MODEL, config, 3, tmp_path / "run", progress=lambda p: begun.append(p.step))
    train(Successor(), MODEL, config, 3, tmp_path / "reference")
    assert contents(tmp_path / "run") == contents(tmp_path / "reference")


def test_interrupt_loses_nothing(whole, tmp_path, monkeypatch):
    """Ctrl-C: the state of that very step is written, and the interrupt passed on."""
    monkeypatch.setattr(loop, "REFRESH_SECONDS", 0.0)

    def press(p: Progress) -> None:
        if p.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Successor(), MODEL, TRAIN, 3, tmp_path / "run", progress=press)
    assert resume.latest(tmp_path / "run").name == "state-00000005.safetensors"
    steps: list[int] = []
    train(Successor(), MODEL, TRAIN, 3, tmp_path / "run", progress=lambda p: steps.append(p.step))
    assert steps == [6, 7, 8]
    assert contents(tmp_path / "run") == contents(whole)


def test_interrupt_in_the_middle_of_an_update_keeps_the_state_before(whole, tmp_path, monkeypatch):
    """Half-updated weights belong to no step: they are not written."""
    real, calls = loop.apply, []

    def interrupted(optimiser, rate):
        calls.append(rate)
        if len(calls) == 4:
            with torch.no_grad():
                next(iter(optimiser.param_groups[0]["params"])).add_(1.0)
            raise KeyboardInterrupt
        real(optimiser, rate)

    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(loop, "apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(Successor(), MODEL, TRAIN, 3, tmp_path / "run")
    assert resume.latest(tmp_path / "run").name == "state-00000003.safetensors"
    train(Successor(), MODEL, TRAIN, 3, tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole)


def test_state_is_written_at_least_every_five_seconds(tmp_path, monkeypatch):
    """With a clock that advances one second a step, no six steps pass without a newer state."""
    monkeypatch.setattr(loop.time, "monotonic", map(float, range(10_000)).__next__)
    seen = []
    newest = []

    def look(p: Progress) -> None:
        seen.append(p.step)
        newest.append(int(resume.latest(tmp_path / "run").stem.removeprefix("state-")))

    train(Successor(), MODEL, dataclasses.replace(TRAIN, steps=20), 0, tmp_path / "run", progress=look)
    assert seen == list(range(1, 21))
    assert max(step - state for step, state in zip(seen, newest, strict=True)) <= 5
    assert max(newest) > 10


# ---------------------------------------------------------------- where it ran


def test_resuming_elsewhere_is_refused_with_the_difference_named(often, tmp_path):
    def stop(p: Progress) -> None:
        raise Killed

    with pytest.raises(Killed):
        train(Successor(), MODEL, TRAIN, 3, tmp_path / "run", progress=stop)
    before = contents(tmp_path / "run")
    with pytest.raises(WorkbenchError, match="threads: 1 there, 2 asked"):
        train(Successor(), MODEL, TRAIN, 3, tmp_path / "run", threads=2)
    with pytest.raises(WorkbenchError, match="compile: False there, True asked"):
        train(Successor(), MODEL, TRAIN, 3, tmp_path / "run", compile=True)
    with pytest.raises(WorkbenchError, match=r"lr: 0.01 there, 0.02 asked"):
        train(Successor(), MODEL, dataclasses.replace(TRAIN, lr=0.02), 3, tmp_path / "run")
    spec = tmp_path / "run" / "resume" / "spec.json"
    spec.write_text(spec.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    with pytest.raises(WorkbenchError, match="device: cuda there, cpu asked"):
        train(Successor(), MODEL, TRAIN, 3, tmp_path / "run")
    spec.write_bytes(before["resume/spec.json"])
    assert contents(tmp_path / "run") == before


def test_damaged_resume_state_and_changed_checkpoint_are_named(often, tmp_path):
    def stop(p: Progress) -> None:
        if p.step == 3:
            raise Killed

    with pytest.raises(Killed):
        train(Successor(), MODEL, TRAIN, 3, tmp_path / "run", progress=stop)
    state = resume.latest(tmp_path / "run")
    kept = state.read_bytes()
    state.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(WorkbenchError, match=f"{state.name} is damaged"):
        train(Successor(), MODEL, TRAIN, 3, tmp_path / "run")
    pickled = io.BytesIO()
    torch.save({"log": torch.zeros(3)}, pickled)
    state.write_bytes(pickled.getvalue())
    with pytest.raises(WorkbenchError, match=f"{state.name} is refused.*pickle"):
        train(Successor(), MODEL, TRAIN, 3, tmp_path / "run")
    state.write_bytes(kept)
    (tmp_path / "run" / runs.checkpoint_name(1)).write_bytes(b"other")
    with pytest.raises(WorkbenchError, match=r"step-00000001.safetensors has changed"):
        train(Successor(), MODEL, TRAIN, 3, tmp_path / "run")


def test_devices(monkeypatch):
    """Case 31: the device is an option, and the CPU always does."""
    assert resolve_device("cpu").type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto").type == "cpu"
    with pytest.raises(WorkbenchError, match="no CUDA device here"):
        resolve_device("cuda")
    with pytest.raises(WorkbenchError, match="unknown device: expected auto or cpu or cuda, got 'tpu'"):
        resolve_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [resolve_device(name).type for name in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]


def test_threads_are_used_inside_and_put_back(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "REFRESH_SECONDS", 0.0)
    before = torch.get_num_threads()
    seen = []

    def look(p: Progress) -> None:
        seen.append(torch.get_num_threads())
        if p.step == 2:
            raise Killed

    with pytest.raises(Killed):
        train(Successor(), MODEL, TRAIN, 0, tmp_path / "run", threads=2, progress=look)
    assert seen == [2, 2]
    assert torch.get_num_threads() == before
    with pytest.raises(WorkbenchError, match="threads cannot be used"), use_threads(0):
        pass


# ---------------------------------------------------------------- what cannot go on


def test_non_finite_loss_names_the_step_and_what_is_kept(often, tmp_path):
    config = dataclasses.replace(TRAIN, steps=40, lr=1e20, warmup_steps=0, grad_clip=1e30, weight_decay=0.0)
    model = dataclasses.replace(MODEL, norm="none")
    with pytest.raises(WorkbenchError, match=r"training stopped at step \d+: (loss|gradient) not finite") as e:
        train(Successor(), model, config, 0, tmp_path / "run")
    text = str(e.value)
    step = int(text.split("at step ")[1].split(":")[0])
    checkpoint = Path(text.split("last good checkpoint is ")[1].split(",")[0])
    state = Path(text.split("resume state ")[1].split(". Train")[0])
    for path in (checkpoint, state):
        tensors = storage.parse_tensors(path, path.read_bytes())
        assert all(t.isfinite().all() for t in tensors.values()), path
        assert int(path.stem.rpartition("-")[2]) <= step
    again = contents(tmp_path / "run")
    with pytest.raises(WorkbenchError, match=f"training stopped at step {step}"):
        train(Successor(), model, config, 0, tmp_path / "run")
    assert contents(tmp_path / "run") == again


def test_non_finite_weights_are_never_written(often, tmp_path, monkeypatch):
    real, calls = loop.apply, []

    def poison(optimiser, rate):
        real(optimiser, rate)
        calls.append(rate)
        if len(calls) == 3:
            with torch.no_grad():
                optimiser.param_groups[0]["params"][0][0, 0] = torch.inf

    monkeypatch.setattr(loop, "apply", poison)
    with pytest.raises(WorkbenchError, match="stopped at step 3: weights not finite"):
        train(Successor(), MODEL, TRAIN, 0, tmp_path / "run")
    for path in (tmp_path / "run").rglob("*.safetensors"):
        assert all(t.isfinite().all() for t in storage.parse_tensors(path, path.read_bytes()).values())


def test_a_task_that_contradicts_itself_or_the_model_is_named(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Wrong(Successor):
        def sample(self, n, split, stream):
            batch = super().sample(n, split, stream)
            return dataclasses.replace(batch, tokens=batch.tokens + 7)

    with pytest.raises(WorkbenchError, match="tokens contradicts the batch: expected ids from 0 to 6"):
        train(Wrong(), MODEL, TRAIN, 0, tmp_path / "a")
    with pytest.raises(WorkbenchError, match=r"does not fit the task .*expected \(7, 6\), got \(9, 6\)"):
        train(Successor(), dataclasses.replace(MODEL, d_vocab=9), TRAIN, 0, tmp_path / "b")
    assert not (tmp_path / "b").exists()


# ---------------------------------------------------------------- progress


def test_progress_reports(often, tmp_path):
    seen: list[Progress] = []
    run = train(Successor(), MODEL, TRAIN, 3, tmp_path / "run", progress=seen.append)
    table = run.training_table()
    assert [p.step for p in seen] == list(range(1, 9))
    assert {p.total for p in seen} == {8}
    assert [p.loss for p in seen] == pytest.approx(list(table.loss))
    assert [p.accuracy for p in seen] == pytest.approx(list(table.accuracy))
    assert all(p.excess == p.loss and p.steps_per_second > 0 for p in seen)
    assert seen[-1].seconds_left == 0
    assert seen[3].seconds_left == pytest.approx(4 / seen[3].steps_per_second)


def test_progress_is_a_mean_since_the_last_report_and_not_too_frequent(tmp_path, monkeypatch):
    monkeypatch.setattr(loop.time, "monotonic", (0.05 * n for n in range(10_000)).__next__)
    seen: list[Progress] = []
    config = dataclasses.replace(TRAIN, steps=10)
    run = train(Successor(known=False), MODEL, config, 3, tmp_path / "run", progress=seen.append)
    assert [p.step for p in seen] == [4, 8, 10]
    assert seen[1].loss == pytest.approx(run.training_table().loss[4:8].mean())
    assert seen[1].steps_per_second == pytest.approx(20)
    assert seen[1].excess is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_draws_on_a_terminal_and_writes_lines_elsewhere(monkeypatch, capsys):
    reports = [Progress(step, 300, 1.25, 0.0123, 0.987, 41.4, 67.2) for step in (4, 99, 104, 150, 299, 300)]
    words = "loss 0.012 above the ceiling, accuracy 98.7%, 41 steps/s, 1:07 left"
    assert describe(reports[0]) == words
    assert describe(dataclasses.replace(reports[0], excess=None)).startswith("loss 1.250, accuracy")
    with bar(300) as show:
        for report in reports:
            show(report)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [f"step {step}/300: {words}" for step in (4, 104, 299, 300)]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with bar(300) as show:
        for report in reports:
            show(report)
    drawn = terminal.getvalue().split("\r")[-1]
    assert "300/300" in drawn
    assert words in drawn


# ---------------------------------------------------------------- the forward pass as a function of parameters


def test_many_seeds_at_once_with_torch_func():
    """functional_call under vmap over stacked parameters gives the logits of the single models (fast path)."""
    for positions in ("rotary", "learned", "alibi"):
        config = ModelConfig(d_vocab=7, n_ctx=6, n_layers=2, n_heads=2, d_model=8, d_mlp=16, positions=positions)
        models = [Transformer(config, seed) for seed in range(3)]
        parameters, buffers = stack_module_state(models)
        tokens = Successor().sample(4, "train", stream(0, "vmap")).tokens

        def logits(p, b, model=models[0], tokens=tokens):
            return functional_call(model, (p, b), (tokens,), {"path": "fast"})

        with sdpa_kernel(SDPBackend.MATH):  # the CPU's fused kernel has no rule for vmap
            together = vmap(logits)(parameters, buffers)
        for seed, model in enumerate(models):
            torch.testing.assert_close(together[seed], model(tokens, path="fast"), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(together[0], together[1])


# ---------------------------------------------------------------- a resume state is used whole or not at all


@pytest.fixture
def stopped(often, tmp_path) -> Path:
    """A training that died with a state of step 3 (step 4 was done and is lost)."""

    def stop(p: Progress) -> None:
        if p.step == 4:
            raise Killed

    with pytest.raises(Killed):
        train(Successor(), MODEL, TRAIN, 3, tmp_path / "run", progress=stop)
    return tmp_path / "run"


def refuse(folder: Path, name: str) -> None:
    with pytest.raises(WorkbenchError, match=f"{name}.*Remove .* to start again") as error:
        train(Successor(), MODEL, TRAIN, 3, folder)
    assert str(error.value).count(str(folder / "resume" / name)) >= 1


def test_one_flipped_bit_of_a_state_is_seen(stopped):
    state = resume.latest(stopped)
    assert state.name == "state-00000003.safetensors"
    data = bytearray(state.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    for place in (start, (start + len(data)) // 2, len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1
        state.write_bytes(changed)
        refuse(stopped, state.name)
    state.write_bytes(data)
    assert train(Successor(), MODEL, TRAIN, 3, stopped).record["steps"] == 8


def test_a_state_with_an_edited_header_is_seen(stopped):
    state = resume.latest(stopped)
    data = state.read_bytes()
    tensors = storage.parse_tensors(state, data)
    note = storage.read_note(state, data)
    fields = json.loads(note)

    def rewritten(tensors: dict, **changes: object) -> tuple[dict, str]:
        merged = fields | changes
        if "sha256" not in changes:
            merged["sha256"] = resume._digest(tensors, merged["step"], merged["checkpoints"])
        return tensors, json.dumps(merged)

    renamed = {name.replace("weight.embed.W_E", "weight.W_E"): t for name, t in tensors.items()}
    cases = [
        (renamed, note), rewritten(renamed), rewritten({n: t for n, t in tensors.items() if n != "log"}),
        rewritten(tensors | {"weight.embed.W_E": torch.zeros(7, 9)}), rewritten(tensors | {"log": torch.zeros(5, 3)}),
        rewritten(tensors | {"log": tensors["log"].double()}), rewritten(tensors | {"extra": torch.zeros(1)}),
        rewritten(tensors, step=4), rewritten(tensors, step="3", sha256=""), rewritten(tensors, step=-3),
        rewritten(tensors, sha256="0" * 64), rewritten(tensors, checkpoints=["x"], sha256=""),
        rewritten(tensors, checkpoints={"../../secret": "0" * 64}), (tensors, note.replace("sha256", "sha")),
        (tensors, "[]"), (tensors, "no json"), (tensors, "[" * 100_000), (tensors, ""),
        (tensors, note.replace('"step": 3', '"step": 2')), (tensors, json.dumps(fields | {"checkpoints": {}})),
    ]  # fmt: skip
    for changed, text in cases:
        storage.write_tensors(state, changed, note=text)
        refuse(stopped, state.name)
    storage.write_tensors(state, tensors, note=note)
    state.rename(state.with_name("state-00000005.safetensors"))
    refuse(stopped, "state-00000005.safetensors")
    (state.with_name("state-00000005.safetensors")).rename(state.with_name("state-x.safetensors"))
    refuse(stopped, "state-x.safetensors")
    (state.with_name("state-x.safetensors")).rename(state)
    train(Successor(), MODEL, TRAIN, 3, stopped)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"spec": [], "execution": {}}', '{"spec": NaN}', "[" * 100_000])
def test_damaged_conditions_of_a_state_are_named(stopped, text):
    (stopped / "resume" / "spec.json").write_text(text)
    refuse(stopped, "spec.json")


# ---------------------------------------------------------------- what is refused before anything is made


@pytest.mark.parametrize("n", [0, -1, 1025, 1_000_000])
def test_threads_are_bounded(tmp_path, n):
    with pytest.raises(WorkbenchError, match="threads cannot be used"):
        train(Successor(), MODEL, TRAIN, 0, tmp_path / "run", threads=n)
    assert not (tmp_path / "run").exists()


def _raise(batch):
    raise KeyError("a fault of its own")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda b: 42, "sample gives no batch: expected a Batch, got 42"),
        (_raise, "sample fails: got KeyError .*a fault of its own"),
        (lambda b: b[:1], "tokens is wrong"),
        (lambda b: dataclasses.replace(b, tokens=b.tokens + 7), "tokens contradicts"),
        (lambda b: dataclasses.replace(b, scored=~b.scored), "scored contradicts"),
    ],
)
@pytest.mark.parametrize("refused_by", [train, require_trainable])
def test_a_task_that_samples_rubbish_is_named_and_nothing_is_made(tmp_path, spoil, words, refused_by):
    @dataclasses.dataclass(frozen=True)
    class Rubbish(Successor):
        def sample(self, n, split, stream):
            return spoil(Successor.sample(self, n, split, stream))

    with pytest.raises(WorkbenchError, match=rf"task test_training: {words}.*Mend sample in .*test_training\.py"):
        refused_by(Rubbish(), MODEL, TRAIN, 0, tmp_path / "run")
    assert not (tmp_path / "run").exists()
