"""The run folder: what it says is true or the file that is wrong is named; no pickle is ever loaded."""

from __future__ import annotations

import copy
import csv
import dataclasses
import gc
import hashlib
import io
import json
import os
import pickle
import shutil
import weakref
from pathlib import Path

import jsonschema
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import workbench
from tests.tiny_task import Successor
from workbench import run_record, runs, storage
from workbench.config import ModelConfig, TrainConfig, override
from workbench.errors import CheckFailed, WorkbenchError
from workbench.model.transformer import Transformer
from workbench.training import train

MODEL = ModelConfig(d_vocab=7, n_ctx=6, n_layers=1, n_heads=2, d_model=8)
TRAIN = TrainConfig(steps=5, batch_size=4, warmup_steps=2)
SCHEMA = json.loads((Path(workbench.__file__).parent / "schemas" / "run.schema.json").read_text())


def make(folder: Path, **train_options) -> runs.Run:
    return train(Successor(), MODEL, dataclasses.replace(TRAIN, **train_options), 3, folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> runs.Run:
    return make(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def run(finished, tmp_path) -> runs.Run:
    """A copy that a test may damage."""
    shutil.copytree(finished.folder, tmp_path / "run")
    return runs.open_run(tmp_path / "run")


def edit(run: runs.Run, *keys: str | int, value: object) -> None:
    """Change one field of run.json, as somebody with an editor would."""
    record = copy.deepcopy(run.record)
    place = record
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (run.folder / "run.json").write_text(json.dumps(record, indent=2))


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


class Bomb:
    """A pickle of this runs code when it is loaded."""

    def __reduce__(self):
        return (os.mkdir, ("bomb-went-off",))


# ---------------------------------------------------------------- identity


def test_record_follows_its_schema_and_the_schema_the_settings(finished):
    written = json.loads((finished.folder / "run.json").read_text())
    assert written == finished.record
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    check = jsonschema.Draft202012Validator(SCHEMA)
    check.validate(written)
    for field, settings in (("model", ModelConfig), ("train", TrainConfig)):
        names = {f.name for f in dataclasses.fields(settings)}
        schema = SCHEMA["properties"]["spec"]["properties"][field]
        assert set(schema["properties"]) == set(schema["required"]) == names
    assert set(SCHEMA["required"]) == set(run_record.FIELDS)
    for key in written:
        assert not check.is_valid({k: v for k, v in written.items() if k != key})
    assert not check.is_valid(written | {"more": 1})


def test_record_says_what_was_asked_and_on_what_it_ran(finished):
    assert finished.task_name == "tiny_task"
    assert finished.task_options == {"n_ctx": 6, "padded": False, "known": True}
    assert (finished.model_config, finished.train_config, finished.seed) == (MODEL, TRAIN, 3)
    assert finished.record["steps"] == 5
    execution = finished.record["execution"]
    assert (execution["device"], execution["threads"], execution["compile"]) == ("cpu", 1, False)
    assert execution["versions"]["torch"] == torch.__version__
    assert set(finished.spec) == {"task", "model", "train", "seed"}


def test_hashes_by_hand(finished):
    """The hash is over the compact, sorted JSON of all else; an artefact's over its bytes; every file is listed."""
    rest = {k: v for k, v in finished.record.items() if k != "hash"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    assert finished.hash == hashlib.sha256(text.encode()).hexdigest()
    files = {str(p.relative_to(finished.folder)) for p in finished.folder.rglob("*") if p.is_file()}
    assert set(finished.record["artefacts"]) == files - {"run.json"}
    for name, digest in finished.record["artefacts"].items():
        assert hashlib.sha256((finished.folder / name).read_bytes()).hexdigest() == digest


def test_weights_have_transformerlens_names(finished):
    tensors = storage.parse_tensors(Path("model"), (finished.folder / "model.safetensors").read_bytes())
    assert {
        "embed.W_E",
        "blocks.0.attn.W_Q",
        "blocks.0.attn.b_O",
        "blocks.0.ln1.w",
        "ln_final.w",
        "unembed.W_U",
    } <= set(tensors)
    assert set(tensors) == {name for name, _ in Transformer(MODEL).named_parameters()}
    assert tensors["blocks.0.attn.W_O"].shape == (2, 4, 8)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3),
        max_leaves=8,
    )
)
def test_canonical_json_is_one_text_for_one_value(value):
    text = storage.canonical_json(value)
    assert json.loads(text) == value
    assert text == storage.canonical_json(json.loads(text))
    assert text.isascii()
    if isinstance(value, dict):
        assert text == storage.canonical_json(dict(reversed(value.items())))


def test_training_table_gives_back_the_written_numbers(finished):
    table = finished.training_table()
    with (finished.folder / "training.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == list(table.loss)
    assert table.step.dtype.kind == "i"
    assert len(table) == 5


# ---------------------------------------------------------------- commands are idempotent


def test_finished_run_is_reused_and_nothing_in_it_touched(run):
    (run.folder / "report.html").write_text("a page about it")
    (run.folder / "resume").mkdir()  # as after a death just before its removal
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in run.folder.rglob("*") if p.is_file()}
    again = make(run.folder)
    assert again.hash == run.hash
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in run.folder.rglob("*") if p.is_file()} == before
    assert not (run.folder / "resume").exists()


def test_another_spec_is_refused_with_every_difference(run):
    with pytest.raises(WorkbenchError, match=r"holds another run \(train\.steps: 5 there, 9 asked\)"):
        make(run.folder, steps=9)
    with pytest.raises(WorkbenchError) as error:
        train(Successor(padded=True), dataclasses.replace(MODEL, norm="none"), TRAIN, 4, run.folder)
    for text in ("task.padded: False there, True asked", "model.norm: pre there, none asked", "seed: 3 there, 4 asked"):
        assert text in str(error.value)
    assert runs.verify(run.folder).hash == run.hash


def test_differences_names_what_is_only_on_one_side():
    there, asked = {"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"x": 1, "z": 3}, "b": 1}
    assert runs.differences(there, asked) == ["a.y: 2 there, None asked", "a.z: None there, 3 asked"]
    assert runs.differences(there, there) == []


def test_somebodys_files_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(WorkbenchError, match=r"not a run's: .*got thesis.tex\. .*nothing was touched"):
        make(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(WorkbenchError, match=r"thesis\.tex is a file"):
        make(tmp_path / "thesis.tex")
    with pytest.raises(WorkbenchError, match="cannot be written"):
        make(tmp_path / "thesis.tex" / "run")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(WorkbenchError, match="/proc/nowhere/run cannot be written"):
        make(Path("/proc/nowhere/run"))

    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "fsync", refuse)
        with pytest.raises(WorkbenchError, match=r"cannot be written: got No space left on device"):
            make(tmp_path / "run")
    assert make(tmp_path / "run").record["steps"] == 5  # and goes on when there is room again


def test_two_processes_do_not_train_into_one_folder(tmp_path):
    tmp_path.joinpath("run").mkdir()
    with storage.exclusive(tmp_path / "run"), pytest.raises(WorkbenchError, match="in use"):
        make(tmp_path / "run")
    assert make(tmp_path / "run").record["steps"] == 5


def test_options_that_json_cannot_hold(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Odd(Successor):
        odd: object = frozenset()

    with pytest.raises(WorkbenchError, match="options of task test_runs cannot be recorded"):
        train(Odd(), MODEL, TRAIN, 0, tmp_path / "run")


# ---------------------------------------------------------------- opening and verifying


def test_what_is_not_a_run(tmp_path):
    with pytest.raises(WorkbenchError, match="is not a run folder: got nothing"):
        runs.open_run(tmp_path / "missing")
    with pytest.raises(WorkbenchError, match="is not a run folder"):
        runs.open_run(tmp_path)
    (tmp_path / "model.pt").write_bytes(pickled(Bomb()))
    with pytest.raises(WorkbenchError, match=r"model\.pt is a pickle and is never loaded"):
        runs.open_run(tmp_path)
    with pytest.raises(WorkbenchError, match="is not a run folder: got a file"):
        runs.open_run(tmp_path / "model.pt")
    (tmp_path / "resume").mkdir()
    with pytest.raises(WorkbenchError, match="is not a run folder"):
        runs.verify(tmp_path)
    (tmp_path / "resume" / "spec.json").write_text("{}")
    with pytest.raises(WorkbenchError, match=r"unfinished run\. Run the same train command"):
        runs.verify(tmp_path)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("seed",), 4),
        (("spec", "seed"), 4),
        (("spec", "train", "lr"), 0.5),
        (("execution", "threads"), 8),
        (("steps",), 6),
        (("artefacts", "model.safetensors"), "0" * 64),
        (("hash",), "0" * 64),
    ],
)
def test_identity_edited_by_hand(run, keys, value):
    edit(run, *keys, value=value)
    with pytest.raises(WorkbenchError, match=r"run\.json was edited by hand or damaged"):
        runs.open_run(run.folder)
    with pytest.raises(CheckFailed, match=r"run\.json was edited"):
        runs.verify(run.folder)
    with pytest.raises(WorkbenchError, match=r"run\.json was edited"):
        make(run.folder)


def test_damaged_identity(run):
    path = run.folder / "run.json"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(WorkbenchError, match=r"run\.json cannot be read: expected a JSON file"):
        runs.open_run(run.folder)
    path.write_text("[1, 2]")
    with pytest.raises(WorkbenchError, match=r"run\.json is of an unknown format"):
        runs.open_run(run.folder)
    edit(run, "format", value=2)
    with pytest.raises(WorkbenchError, match="unknown format: expected format 1, got 2"):
        runs.open_run(run.folder)


def test_identity_with_foreign_settings_and_a_true_hash(run):
    record = {k: v for k, v in run.record.items() if k != "hash"}
    record["spec"] = record["spec"] | {"model": record["spec"]["model"] | {"n_experts": 8}}
    record["hash"] = storage.sha256(storage.canonical_json(record))
    storage.write_json(run.folder / "run.json", record)
    with pytest.raises(WorkbenchError, match=r"run\.json has settings unknown to this version.*n_experts"):
        runs.open_run(run.folder)


def test_verify_of_a_sound_run_returns_it(run):
    assert runs.verify(run.folder).hash == run.hash
    assert runs.verify(str(run.folder)).hash == run.hash


def damaged_bytes(data: bytes, how: str) -> bytes:
    flipped = bytearray(data)
    flipped[-1] ^= 1
    return {
        "truncated": data[:-7],
        "header": data[:20],
        "empty": b"",
        "flipped": bytes(flipped),
        "noise": b"\x07" * 99,
    }[how]


@pytest.mark.parametrize("how", ["truncated", "header", "empty", "flipped", "noise"])
@pytest.mark.parametrize("name", ["model.safetensors", "checkpoints/step-00000002.safetensors"])
def test_damaged_weights_are_named(run, name, how):
    path = run.folder / name
    path.write_bytes(damaged_bytes(path.read_bytes(), how))
    load = run.load_model if name.startswith("model") else lambda: run.load_checkpoint(2)
    words = "has changed since it was trained" if how == "flipped" else "is damaged or truncated"
    with pytest.raises(WorkbenchError, match=f"{path.name} {words}"):
        load()
    with pytest.raises(CheckFailed, match=f"{path.name} {words}"):
        runs.verify(run.folder)


def test_missing_changed_and_stray_files_are_named(run):
    table = run.folder / "training.csv"
    kept = table.read_text()
    table.write_text(kept.replace(",", ";"))
    for look in (run.training_table, lambda: runs.verify(run.folder)):
        with pytest.raises(WorkbenchError, match=r"training\.csv has changed"):
            look()
    table.write_text(kept)
    stray = run.folder / "checkpoints" / "step-00000099.safetensors"
    shutil.copy(run.folder / "model.safetensors", stray)
    assert 99 not in [c.step for c in run.checkpoints()]
    with pytest.raises(CheckFailed, match=r"step-00000099\.safetensors is not part of this run"):
        runs.verify(run.folder)
    stray.unlink()
    (run.folder / "checkpoints" / "step-00000001.safetensors").unlink()
    with pytest.raises(CheckFailed, match=r"step-00000001\.safetensors cannot be read: got No such file"):
        runs.verify(run.folder)


def test_checkpoint_that_is_not_there(run):
    with pytest.raises(WorkbenchError, match=r"no checkpoint of that step: expected 0, 1, 2, 3, 4, 5, got 7"):
        run.load_checkpoint(7)


def test_weights_of_another_model_name_file_and_tensor(run):
    cases = {
        "blocks.0.attn.W_Q": (
            dataclasses.replace(MODEL, d_head=6),
            r"expected torch.float32 \(2, 8, 4\), got .*\(2, 8, 6\)",
        ),
        "embed.W_E": (
            dataclasses.replace(MODEL, d_model=16),
            r"expected torch.float32 \(7, 8\), got torch.float32 \(7, 16\)",
        ),
        "blocks.0.ln1.w": (dataclasses.replace(MODEL, norm="none"), "got no such tensor"),
        "blocks.1.attn.W_K": (dataclasses.replace(MODEL, n_layers=2), "expected no such tensor"),
    }
    for tensor, (config, words) in cases.items():
        path = run.folder / runs.checkpoint_name(2)
        storage.write_tensors(path, Transformer(config).state_dict())
        with pytest.raises(
            WorkbenchError, match=rf"step-00000002\.safetensors .*another model \({tensor}\): .*{words}"
        ):
            run.load_checkpoint(2)
    storage.write_tensors(path, Transformer(MODEL).half().state_dict())
    with pytest.raises(WorkbenchError, match=r"got torch\.float16"):
        run.load_checkpoint(2)


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoints/step-00000000.safetensors"])
def test_a_pickle_in_the_place_of_weights_is_refused_and_never_loaded(run, name, tmp_path, monkeypatch):
    """Neither torch's zip, nor its old form, nor a bare pickle of any protocol runs its code."""
    monkeypatch.chdir(tmp_path)
    legacy = io.BytesIO()
    torch.save(Bomb(), legacy, _use_new_zipfile_serialization=False)
    bare = [pickle.dumps(Bomb(), protocol=p) for p in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    for data in (pickled(Bomb()), pickled(Transformer(MODEL).state_dict()), legacy.getvalue(), *bare):
        (run.folder / name).write_bytes(data)
        load = run.load_model if name.startswith("model") else lambda: run.load_checkpoint(0)
        with pytest.raises(WorkbenchError, match=f"{Path(name).name} is refused: expected safetensors, got a pickle"):
            load()
        with pytest.raises(CheckFailed, match="is refused"):
            runs.verify(run.folder)
    assert not (tmp_path / "bomb-went-off").exists()
    (run.folder / name).write_bytes(pickle.dumps(Bomb(), protocol=0))
    with pytest.raises(WorkbenchError, match="is damaged or truncated"):
        runs.verify(run.folder)
    assert not (tmp_path / "bomb-went-off").exists()


def test_a_pickle_beside_missing_weights_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (run.folder / "model.safetensors").rename(run.folder / "model.pt")
    (run.folder / "model.pt").write_bytes(pickled(Bomb()))
    with pytest.raises(WorkbenchError, match=r"model\.safetensors cannot be read.*model\.pt beside it is a pickle"):
        run.load_model()
    assert not (tmp_path / "bomb-went-off").exists()


def test_a_header_that_looks_like_a_zip_is_no_pickle():
    """The first bytes of a safetensors file are a length, which may spell "PK"; its header opens at byte 8."""
    length = int.from_bytes(b"PK", "little")
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode().ljust(length)
    data = length.to_bytes(8, "little") + header + torch.tensor([2.5]).numpy().tobytes()
    assert data[:2] == b"PK"
    assert storage.parse_tensors(Path("odd"), data)["a"].tolist() == [2.5]


# ---------------------------------------------------------------- files


def test_writes_are_whole_or_absent(tmp_path, monkeypatch):
    path = tmp_path / "file"
    digest = storage.write_atomic(path, b"first")
    assert digest == hashlib.sha256(b"first").hexdigest()

    def die(*_):
        raise KeyboardInterrupt

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(storage.os, name, die)
            with pytest.raises(KeyboardInterrupt):
                storage.write_atomic(path, b"second")
        assert path.read_bytes() == b"first"
    storage.write_atomic(path, b"third")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"third"


def test_tensors_go_and_come_back_with_their_note(tmp_path):
    tensors = {"b": torch.arange(6.0).reshape(2, 3).T, "a": torch.zeros(0, 3), "c": torch.tensor(5)}
    storage.write_tensors(tmp_path / "t", tensors, note="a note")
    data = storage.read_bytes(tmp_path / "t")
    back = storage.parse_tensors(tmp_path / "t", data)
    assert set(back) == set(tensors)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    assert storage.read_note(tmp_path / "t", data) == "a note"
    storage.write_tensors(tmp_path / "t", tensors)
    with pytest.raises(WorkbenchError, match="not one of ours"):
        storage.read_note(tmp_path / "t", storage.read_bytes(tmp_path / "t"))


def test_memory_is_flat_over_fifty_models_opened_and_dropped(tmp_path):
    """Case 29: nothing keeps a dropped model: no object of it is left, and the process does not grow."""
    wide = dataclasses.replace(MODEL, d_model=256, d_head=128)  # 1 MiB each: fifty that stay would be seen
    folder = train(Successor(), wide, dataclasses.replace(TRAIN, steps=1), 0, tmp_path / "run").folder
    process = psutil.Process()

    def tensors() -> int:
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    def open_and_drop(n: int) -> list[weakref.ref]:
        references = []
        for _ in range(n):
            model = runs.open_run(folder).load_model()
            model(torch.ones(1, 4, dtype=torch.long))
            references.append(weakref.ref(model))
        del model
        gc.collect()
        return references

    open_and_drop(5)
    count, memory = tensors(), process.memory_info().rss
    assert [r for r in open_and_drop(50) if r() is not None] == []
    assert tensors() == count
    assert process.memory_info().rss - memory < 16 * 2**20


# ---------------------------------------------------------------- what is refused, and told in one error


@pytest.mark.parametrize("how", ["flipped", "truncated", "missing", "pickled"])
@pytest.mark.parametrize("name", ["model.safetensors", "checkpoints/step-00000002.safetensors", "training.csv"])
def test_a_damaged_finished_run_is_not_reused(run, name, how):
    path = run.folder / name
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(pickled([1]) if how == "pickled" else damaged_bytes(path.read_bytes(), how))
    with pytest.raises(WorkbenchError, match=f"{path.name}.*(train again|is a pickle)") as error:
        make(run.folder)
    assert not isinstance(error.value, CheckFailed)


def forge(run: runs.Run, *keys: str, value: object = None, drop: bool = False) -> None:
    """Change a field of run.json and give it the hash of its new content."""
    record = copy.deepcopy({k: v for k, v in run.record.items() if k != "hash"})
    place = record
    for key in keys[:-1]:
        place = place[key]
    if drop:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    record["hash"] = storage.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode())
    (run.folder / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("keys", "value", "field"),
    [
        (("spec",), [], "spec"),
        (("spec", "model", "n_layers"), 2.0, r"spec\.model\.n_layers"),
        (("spec", "model", "n_layers"), 10**9, r"model\.n_layers"),
        (("spec", "model", "norm"), ["pre"], r"spec\.model\.norm"),
        pytest.param(("spec", "train", "lr"), 10**400, r"spec\.train\.lr", id="lr"),
        (("spec", "train", "steps"), True, r"spec\.train\.steps"),
        (("spec", "task"), "induction", r"spec\.task"),
        (("spec", "task", "options"), [1], r"spec\.task\.options"),
        (("spec", "seed"), "x", r"spec\.seed"),
        (("steps",), 6, "steps"),
        (("execution",), {}, r"execution\.device"),
        (("execution", "versions", "torch"), 2, r"execution\.versions\.torch"),
        (("artefacts",), [], "artefacts"),
        (("artefacts",), {}, r"artefacts\.model\.safetensors"),
        (("artefacts", "model.safetensors"), "abc", r"artefacts\.model\.safetensors"),
        (("artefacts", "checkpoints/foo.safetensors"), "0" * 64, "artefacts"),
        (("artefacts", "../../../etc/passwd"), "0" * 64, "artefacts"),
        (("artefacts", "/etc/passwd"), "0" * 64, "artefacts"),
    ],
)
def test_malformed_identity_with_a_true_hash_names_the_field(run, keys, value, field, monkeypatch):
    forge(run, *keys, value=value)
    monkeypatch.setattr(storage, "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    with pytest.raises(WorkbenchError, match=rf"run\.json: {field} "):
        runs.open_run(run.folder)
    with pytest.raises(CheckFailed, match=rf"run\.json: {field} "):
        runs.verify(run.folder)


@pytest.mark.parametrize(
    "keys",
    [("spec", "model"), ("spec", "task"), ("spec", "seed"), ("spec", "model", "d_head"),
     ("artefacts", "checkpoints/step-00000000.safetensors")],
)  # fmt: skip
def test_identity_without_a_field_names_it(run, keys):
    forge(run, *keys, drop=True)
    with pytest.raises(WorkbenchError, match=rf"run\.json: {'.'.join(keys)} is malformed"):
        runs.open_run(run.folder)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999", "[" * 100_000, '{"a":' * 100_000, "9" * 5000, '"\xff'])
def test_what_json_cannot_mean_names_the_file(run, text):
    whole = (run.folder / "run.json").read_text()
    for content in (text, whole.replace('"seed": 3', f'"seed": {text}')):
        (run.folder / "run.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(WorkbenchError, match=r"run\.json"):
            runs.open_run(run.folder)


def test_values_that_have_no_canonical_text():
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    for value in (float("nan"), [float("inf")], nested):
        with pytest.raises(WorkbenchError, match="no place in JSON"):
            storage.canonical_json(value)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_names_that_no_folder_can_have(tmp_path, name):
    for look in (runs.open_run, runs.verify):
        with pytest.raises(WorkbenchError, match=r"cannot be opened|is not a run folder"):
            look(tmp_path / name)


def test_somebodys_resume_folders_are_left_alone(tmp_path, finished):
    for name in ("resume", ".resume.tmp"):
        folder = tmp_path / f"for {name}"
        (folder / name).mkdir(parents=True)
        (folder / name / "cv.txt").write_text("a life")
        with pytest.raises(WorkbenchError, match="not a run's"):
            make(folder)
        assert (folder / name / "cv.txt").read_text() == "a life"
        assert [p.name for p in folder.iterdir()] == [name]
    (folder / name / "cv.txt").rename(folder / name / "spec.json")
    with pytest.raises(WorkbenchError, match="not a run's"):
        make(folder)
    shutil.copytree(finished.folder, tmp_path / "run")
    (tmp_path / "run" / "resume").mkdir()
    (tmp_path / "run" / "resume" / "cv.txt").write_text("a life")
    assert make(tmp_path / "run").hash == finished.hash
    assert (tmp_path / "run" / "resume" / "cv.txt").exists()


def test_absurd_sizes_are_refused():
    for options, field in (({"steps": 10**12}, "steps"), ({"batch_size": 10**11}, "batch_size")):
        with pytest.raises(WorkbenchError, match=rf"train\.{field} cannot be used: expected at most"):
            TrainConfig(**options)
    with pytest.raises(WorkbenchError, match=r"train\.steps cannot be used: expected a whole number, got inf"):
        override(TRAIN, {"steps": float("inf")}, "train")
    assert TrainConfig(steps=10**7, batch_size=10**6).steps == 10**7
    for name in ("d_vocab", "n_ctx", "n_layers", "n_heads", "d_model", "d_head", "d_mlp"):
        with pytest.raises(WorkbenchError, match=rf"model\.{name} cannot be used: expected at most 1000000"):
            dataclasses.replace(MODEL, **{name: 1_000_001})
