"""A run's folder in any order of training, kills, damage, verification and export.

`KERAS_VIT_STATES=200` tries so many orders; the totals are printed.
"""

import collections
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from keras_vit import manifest
from keras_vit.training import fit, resume
from keras_vit.weights.keras_files import load_model
from tests.training.test_fitting import recipe, source, tiny  # noqa: F401

pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

ORDERS = int(os.environ.get("KERAS_VIT_STATES", "5"))
SETTINGS = recipe(total_steps=6, ema=0.5)
EVENTS = ("on_train_batch_end", "on_test_batch_end", "on_epoch_end", "save")
TOTALS = collections.Counter()


class Cut(BaseException):
    """As a kill: nothing that the library would catch."""


class RunFolder(RuleBasedStateMachine):
    """One folder, and what is known of it: its damaged files and whether it ended.

    A training that returns has the bits of one that was never interrupted; any other
    ends with an error of ours. A damaged file of an ended run is found and named.
    """

    data = None
    expected = None

    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "run"
        self.ended = False
        self.damaged = set()

    def teardown(self):
        shutil.rmtree(self.root)

    def train(self, at=None):
        """The final weights; None after a cut, or an error that damage explains."""
        left = [at and at[1]]
        with pytest.MonkeyPatch.context() as patch:
            if at is not None:
                real = getattr(resume.CheckpointCallback, at[0])

                def instead(callback, *arguments, **options):
                    left[0] -= 1
                    if left[0] < 0:
                        raise Cut
                    return real(callback, *arguments, **options)

                patch.setattr(resume.CheckpointCallback, at[0], instead)
            model = tiny(dropout_rate=0.3)
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always", UserWarning)
                    fit(
                        model,
                        SETTINGS,
                        self.data,
                        output=self.folder,
                        save_steps=2,
                        verbose=0,
                    )
            except Cut:
                TOTALS["killed"] += 1
                return None
            except (ValueError, OSError) as refusal:
                if not self.damaged:
                    raise
                words = str(refusal)
                assert str(self.folder) in words or "Expected" in words
                TOTALS["refused"] += 1
                return None
        TOTALS["trained"] += 1
        if self.ended and "manifest.json" not in self.damaged:
            words = " ".join(str(warning.message) for warning in caught)
            assert all(name in words for name in self.damaged)
        self.ended, self.damaged = True, set()
        return model.get_weights()

    @rule()
    def train_to_the_end(self):
        weights = self.train()
        if weights is None:
            return
        for ours, theirs in zip(weights, type(self).expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)

    @precondition(lambda self: not self.ended)
    @rule(event=st.sampled_from(EVENTS), count=st.integers(0, 5))
    def kill(self, event, count):
        self.train((event, count))

    @precondition(lambda self: self.folder.exists())
    @rule(place=st.integers(0, 10**6), how=st.sampled_from(("flip", "cut", "delete")))
    def damage(self, place, how):
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        if not files:
            return
        file = files[place % len(files)]
        content = bytearray(file.read_bytes())
        if how == "delete":
            file.unlink()
        elif content:
            at = place % len(content)
            if how == "flip":
                content[at] ^= 1
                file.write_bytes(content)
            else:
                file.write_bytes(content[:at])
        else:
            return
        self.damaged.add(file.relative_to(self.folder).as_posix())
        TOTALS["damaged"] += 1

    @precondition(lambda self: self.folder.exists())
    @rule()
    def verify(self):
        try:
            found = manifest.verify(self.folder)
        except ValueError:
            if self.ended and "manifest.json" not in self.damaged:
                raise
            TOTALS["verified: no manifest"] += 1
            return
        named = {*found.changed, *found.missing}
        assert named == self.damaged or not self.ended
        assert not found.additional
        TOTALS["verified: whole" if found.whole else "verified: damaged"] += 1

    @precondition(lambda self: self.ended)
    @rule()
    def export(self):
        """What an export starts from: the model is that of the run, or refused."""
        path = self.folder / "model.keras"
        try:
            model = load_model(path)
        except (ValueError, OSError) as refusal:
            if "model.keras" not in self.damaged:
                raise
            words = str(refusal)
            assert "unsafe" not in words
            TOTALS["export: refused"] += 1
            return
        same = all(map(np.array_equal, model.get_weights(), type(self).expected))
        assert same or "model.keras" in self.damaged
        TOTALS["exported"] += 1

    @precondition(lambda self: self.folder.exists())
    @rule()
    def delete(self):
        shutil.rmtree(self.folder)
        self.ended, self.damaged = False, set()


def test_any_order(source, tmp_path):  # noqa: F811
    model = tiny(dropout_rate=0.3)
    fit(model, SETTINGS, source, output=tmp_path / "uncut", save_steps=2, verbose=0)
    RunFolder.data, RunFolder.expected = source, model.get_weights()
    TOTALS.clear()
    run_state_machine_as_test(
        RunFolder,
        settings=settings(
            max_examples=ORDERS,
            stateful_step_count=8,
            deadline=None,
            database=None,
            derandomize="KERAS_VIT_STATES" not in os.environ,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"\n{ORDERS} orders: {dict(TOTALS)}")
    keras.backend.clear_session()
