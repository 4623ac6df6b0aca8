"""Compares ViT-B/16 in this library and in others, on this machine in one run.

    make peers                        # An environment for each library, once.
    python benchmarks/peers.py
    python benchmarks/peers.py --variant BiT-R50x1 --only timm timm-compiled
    python benchmarks/peers.py --only timm timm-compiled --plot peers.png
    python benchmarks/peers.py --flax-checkout ../vision_transformer
    python benchmarks/peers.py --device gpu --json gpu.json    # A sweep: see below.
    python benchmarks/peers.py --sweep --models ViT-Ti/16@64 --most 8    # On a CPU.

Run it on an idle machine: a busy one slows some libraries more than others.

Each library runs in a separate process (peer_adapters.py), which stays alive while the
others have their turns. In a round, each computes a matrix product of the MLP's shape
(its peak), then predictions and updates; every second round is in reverse order. Ratios
are within a round, so their times are seconds or minutes apart. Above 1 is faster than
ours-tensorflow, the default of `keras_vit.vit(...)` and `compile`. Libraries that do
not fit into memory together run in groups, with ours-tensorflow in each.

A GPU requires JAX and torch with GPU support, in .venv and in .venv-peers. There, ours
on JAX and torch, and timm, eager and compiled, with channels last and fused attention,
run ViT-S, B and L/16 at 224 px and ViT-B/16 at 384 px in bfloat16 (autocast; weights
are float32). The batch is swept up to the largest that fits, for forward passes and
updates (sweep.py). The results are images/s, MFU, peak memory, and the predictions of
`costs`.

After the rounds come the peak memory, the median of five batches of one image, and the
time from the start of a process until it has printed the class of one image. For this,
the weights are read from a cached file in the library's own format.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import platform
import runpy
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import sweep
from peer_adapters import CONVOLUTIONAL, Job

ROOT = Path(__file__).parents[1]
ADAPTERS = ROOT / "benchmarks/peer_adapters.py"
# A file that needs only the standard library; the package would load TensorFlow here.
# It is located without an import, because it may be installed elsewhere.
PACKAGE = importlib.util.find_spec("keras_vit")
CONFIGS = Path(str(PACKAGE and PACKAGE.origin)).with_name("configs.py")
VARIANTS = runpy.run_path(str(CONFIGS))["VIT_VARIANTS"]
TURN = ("peak", "forward", "training")
CALLS = {"peak": 20, "forward": 2, "training": 1}
DEVICES = ("cpu", "gpu")
PATIENCE = 1200  # Seconds; torch.compile of a large model takes minutes.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A library with its settings."""

    name: str
    library: str  # A name in peer_adapters.PEERS.
    environment: str = ""  # A folder of .venv-peers; "" is the current environment.
    backend: str = "tensorflow"  # Keras's backend.
    compiled: bool | str = False
    turn: tuple[str, ...] = TURN
    starts: bool = True
    gpu: bool = False

    @property
    def side(self) -> str:
        """The group of libraries that this row belongs to."""
        if self.library in ("keras_vit", "openvino"):
            return "ours"
        return "Keras" if self.library in ("keras-hub", "vit-keras") else self.library

    @property
    def python(self) -> Path:
        """The Python interpreter."""
        own = ROOT / ".venv-peers" / self.environment / "bin/python"
        if not self.environment or (self.side == "ours" and not own.exists()):
            return Path(sys.executable)
        return own


ROWS = (
    # TensorFlow imports jax, scikit-learn and IPython if they are installed.
    Row(
        name="ours-tensorflow",
        library="keras_vit",
        environment="keras-vit",
        compiled="auto",
    ),
    Row(
        name="ours-torch",
        library="keras_vit",
        backend="torch",
        compiled="auto",
        gpu=True,
    ),
    Row(name="ours-openvino", library="openvino", turn=("peak", "forward")),
    Row(name="timm", library="timm", environment="torch", gpu=True),
    Row(
        name="timm-compiled",
        library="timm",
        environment="torch",
        compiled=True,
        starts=False,
        gpu=True,
    ),
    Row(name="huggingface", library="huggingface", environment="torch", gpu=True),
    Row(name="ours-tensorflow-xla", library="keras_vit", compiled=True, starts=False),
    Row(name="keras-hub", library="keras-hub", environment="keras-hub"),
    Row(
        name="keras-hub-xla",
        library="keras-hub",
        environment="keras-hub",
        compiled=True,
        starts=False,
    ),
    Row(
        name="vit-keras",
        library="vit-keras",
        environment="vit-keras",
        compiled="auto",
    ),
    Row(
        name="ours-jax",
        library="keras_vit",
        backend="jax",
        compiled="auto",
        gpu=True,
    ),
    Row(name="flax", library="flax", environment="flax", gpu=True),
)
REFERENCE = "ours-tensorflow"


class FailureError(RuntimeError):
    """One line about a worker that has ended or does not respond."""


class Worker:
    """A process that responds to each line with a line, both in JSON."""

    def __init__(
        self, command: list[str], environment: dict[str, str], errors: Path
    ) -> None:
        self.errors = errors
        with errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ends helpers, such as torch.compile's, too.
            )

    def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """Sends a request and returns the response.

        Raises:
            FailureError: if it ends, or takes more than PATIENCE seconds.
        """
        assert self.process.stdin  # noqa: S101
        try:
            self.process.stdin.write(json.dumps({"what": what} | more).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise FailureError(self._last_words()) from None
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Returns the next line."""
        assert self.process.stdout  # noqa: S101
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            raise FailureError(f"no answer within {PATIENCE} s")
        line = self.process.stdout.readline()
        if not line:
            raise FailureError(self._last_words())
        return dict(json.loads(line))

    def _last_words(self) -> str:
        code = self.process.wait()
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        lines = self.errors.read_text(errors="replace").split("\n")
        told = [line.strip() for line in lines if line.strip()]
        return told[-1] if told else f"ended with {code}, and said nothing"

    def close(self) -> None:
        """Ends the process."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # It has already ended.
        finally:
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe:
                    pipe.close()


@dataclasses.dataclass
class Figures:
    """Measurements of a row: seconds per call, by round."""

    name: str
    side: str
    seconds: dict[str, list[float]]
    relative: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    memory: int = 0  # Bytes.
    latency: float = 0.0  # Seconds.
    starts: list[float] = dataclasses.field(default_factory=list)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    failure: str = ""

    def has(self, what: str) -> bool:
        """Whether it was measured."""
        return not self.failure and bool(self.seconds.get(what))

    def compare(self, reference: "Figures") -> None:
        """Sets the speed relative to the reference, by round."""
        for what in ("forward", "training"):
            both = zip(
                reference.seconds[what], self.seconds.get(what, ()), strict=False
            )
            self.relative[what] = [theirs / own for theirs, own in both]


@dataclasses.dataclass(frozen=True)
class Work:
    """The amount of work in a call, in images and multiply-adds."""

    batch: int
    forward: int  # Multiply-adds of one image; an update has three times as many.
    product: int

    def images(self, figures: Figures, what: str) -> list[float]:
        """Images per second, by round."""
        return [self.batch / seconds for seconds in figures.seconds[what]]

    def peak(self, figures: Figures) -> list[float]:
        """FLOP/s of the matrix product, by round."""
        return [2 * self.product / seconds for seconds in figures.seconds["peak"]]

    def shares(self, figures: Figures, what: str) -> list[float]:
        """FLOP/s as a share of the peak in the same round."""
        passes = 3 if what == "training" else 1
        flops = 2 * passes * self.forward
        both = zip(self.images(figures, what), self.peak(figures), strict=True)
        return [flops * rate / peak for rate, peak in both]


def spread(values: list[float], digits: int = 2) -> str:
    """Formats median, minimum and maximum: "1.05 (1.02 to 1.09)"."""
    middle, *ends = (
        f"{value:.{digits}f}"
        for value in (statistics.median(values), min(values), max(values))
    )
    return f"{middle} ({' to '.join(ends)})"


HEADER = (
    f"{'':20}{'forward':>24}{'of':>6}{'training':>24}{'of':>6}{'peak':>9}"
    f"{'':>7}{'1 image':>9}{'start':>7}{'forward, of':>22}{'training, of':>22}\n"
    f"{'':20}{'images/s':>24}{'peak':>6}{'images/s':>24}{'peak':>6}{'GFLOP/s':>9}"
    f"{'GB':>7}{'ms':>9}{'s':>7}{'the reference':>22}{'the reference':>22}"
)


def line(figures: Figures, work: Work) -> str:
    """Formats a row of the table."""
    if figures.failure:
        return f"{figures.name:20}  failed: {figures.failure}"
    cells = [f"{figures.name:20}"]
    for what in ("forward", "training"):
        if figures.has(what):
            rates, shares = work.images(figures, what), work.shares(figures, what)
            digits = 2 if statistics.median(rates) < 100 else 0
            cells.append(f"{spread(rates, digits):>24}{statistics.median(shares):6.2f}")
        else:
            cells.append(f"{'-':>24}{'-':>6}")
    cells.append(f"{statistics.median(work.peak(figures)) / 1e9:9,.0f}")
    cells.append(f"{figures.memory / 1e9:7.2f}{1e3 * figures.latency:9.1f}")
    start = f"{statistics.median(figures.starts):.1f}" if figures.starts else "-"
    cells.append(f"{start:>7}")
    for what in ("forward", "training"):
        ratios = figures.relative.get(what)
        cells.append(f"{spread(ratios) if ratios else '-':>22}")
    return "".join(cells)


def best(measured: list[Figures], side: str, what: str) -> Figures | None:
    """Returns the fastest row of a side, by the median of its ratios."""
    rows = [row for row in measured if row.side == side and row.has(what)]
    return max(
        rows, key=lambda row: statistics.median(row.relative[what]), default=None
    )


def verdicts(measured: list[Figures], reference: str) -> list[str]:
    """Compares the reference with the best Keras peer and timm; our best with timm."""
    lines = []
    default = next(row for row in measured if row.name == reference)
    for what in ("forward", "training"):
        ours, timm = best(measured, "ours", what), best(measured, "timm", what)
        keras = best(measured, "Keras", what)
        pairs = [
            (default, keras, "the best Keras peer"),
            (default, timm, "timm's best"),
        ]
        if ours is not default:
            pairs.append((ours or default, timm, "timm's best"))
        for own, peer, role in pairs:
            if peer is not None:
                both = zip(own.relative[what], peer.relative[what], strict=True)
                ratios = [mine / theirs for mine, theirs in both]
                lines.append(
                    f"{what}: {own.name} has {spread(ratios)} times the images/s of "
                    f"{peer.name}, {role}"
                )
    return lines


class Bench:
    """The processes of a run, with their settings."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.multiply_adds = 0

    def job(self, row: Row) -> Job:
        """Returns the job of a row's process."""
        options = self.options
        config = VARIANTS.get(options.variant, VARIANTS["ViT-B/16"])
        return Job(
            library=row.library,
            compiled=row.compiled,
            device=options.device,
            variant=options.variant,
            image_size=options.image_size,
            batch=options.batch,
            patch_size=config.patch_size,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            mlp_dim=config.mlp_dim,
            num_heads=config.num_heads,
        )

    def work(self) -> Work:
        """Returns the amount of work in a call."""
        rows, inner, columns = self.job(ROWS[0]).product
        return Work(self.options.batch, self.multiply_adds, rows * inner * columns)

    def start(self, row: Row, *arguments: str) -> Worker:
        """Starts a row's process."""
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "KERAS_BACKEND": row.backend,
            "OMP_NUM_THREADS": str(os.cpu_count()),  # torch's default is half of them.
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TMPDIR": str(self.folder),  # Because a killed process leaves files.
        }
        if self.options.device == "cpu":
            environment |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
        else:  # One process at a time uses the GPU.
            environment |= {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}
        environment.pop("PYTHONPATH", None)
        if row.side == "ours":
            environment["PYTHONPATH"] = str(ROOT)
        elif row.library == "flax":
            environment["PYTHONPATH"] = str(self.options.flax_checkout.resolve())
        job = json.dumps(dataclasses.asdict(self.job(row)))
        command = [str(row.python), str(ADAPTERS), job, *arguments]
        return Worker(command, environment, self.folder / f"{row.name}.stderr")

    def group(self, rows: list[Row]) -> list[Figures]:
        """Measures rows whose processes run at the same time, the reference first.

        Raises:
            SystemExit: if the reference fails, because it is needed for the ratios.
        """
        measured = {row.name: Figures(row.name, row.side, {}) for row in rows}
        workers: dict[str, Worker] = {}

        def attempt(row: Row, step: Any, *arguments: Any) -> None:
            figures = measured[row.name]
            if figures.failure:
                return
            try:
                step(row, workers[row.name], figures, *arguments)
            except FailureError as error:
                figures.failure = str(error)
                workers[row.name].close()
                progress(f"{row.name} failed: {error}")
                if row is rows[0]:
                    sys.exit(f"{row.name}, the others' reference, failed: {error}")

        try:
            for row in rows:
                workers[row.name] = self.start(row)
                attempt(row, self._warm)
            for number in range(self.options.rounds):
                for row in rows if number % 2 == 0 else rows[::-1]:
                    attempt(row, self._round)
                progress(f"round {number + 1} of {self.options.rounds}")
            for row in rows:
                attempt(row, self._end)
        finally:
            for worker in workers.values():
                worker.close()
        for row in rows:
            if not measured[row.name].failure:
                measured[row.name].compare(measured[rows[0].name])
        return list(measured.values())

    def _warm(self, row: Row, worker: Worker, figures: Figures) -> None:
        begun = time.perf_counter()
        facts = worker.ask("facts")
        figures.versions = facts["versions"]
        if row.name == REFERENCE:
            self.multiply_adds = facts["multiply_adds"]
        for what in (*row.turn, "latency"):
            worker.ask(what, calls=2)
        progress(f"{row.name} is warm after {time.perf_counter() - begun:.0f} s")

    def _round(self, row: Row, worker: Worker, figures: Figures) -> None:
        worker.ask("latency", calls=1)  # A warm-up, which is not counted.
        for what in row.turn:
            seconds = worker.ask(what, calls=CALLS[what])["seconds"]
            figures.seconds.setdefault(what, []).append(seconds)

    def _end(self, row: Row, worker: Worker, figures: Figures) -> None:
        figures.memory = worker.ask("memory")["bytes"]
        figures.latency = statistics.median(
            worker.ask("latency", calls=1)["seconds"] for _ in range(5)
        )
        if row.starts and self.options.starts and not self.saved(row).exists():
            self.saved(row).mkdir()
            worker.ask("save", folder=str(self.saved(row)))

    def saved(self, row: Row) -> Path:
        """Returns the folder of a row's weights."""
        return self.folder / row.name

    def first(self, row: Row) -> float:
        """Measures seconds from the start of a process to its first prediction."""
        begun = time.perf_counter()
        worker = self.start(row, "--first", str(self.saved(row)))
        try:
            worker.answer()
            return time.perf_counter() - begun
        finally:
            worker.close()

    def starts(self, rows: list[Row], measured: list[Figures]) -> None:
        """Measures first predictions, in turns."""
        by_name = {figures.name: figures for figures in measured}
        rows = [row for row in rows if row.starts and not by_name[row.name].failure]
        for number in range(self.options.starts):
            for row in list(rows):
                try:
                    by_name[row.name].starts.append(self.first(row))
                except FailureError as error:
                    rows.remove(row)
                    print(f"{row.name}: its first prediction failed: {error}")
            progress(f"starts {number + 1} of {self.options.starts}")


def progress(told: str) -> None:
    """Prints the progress to standard error."""
    print(f"{time.strftime('%H:%M:%S')} {told}", file=sys.stderr, flush=True)


def chosen(options: argparse.Namespace) -> list[Row]:
    """Returns the rows that can be run, the reference first; prints the others."""
    reference = "" if options.sweep else REFERENCE
    only = options.only or (sweep.ROWS if options.sweep else ())
    rows = []
    for row in sorted(ROWS, key=lambda row: row.name != reference):
        if row.name != reference and only and row.name not in only:
            continue
        if options.sweep and not set(sweep.CALLS) <= set(row.turn):
            continue
        if options.device == "gpu" and not row.gpu:
            continue
        if options.variant in CONVOLUTIONAL and row.side not in ("ours", "timm"):
            print(f"{row.name} is left out: it was not adapted to {options.variant}")
        elif not row.python.exists():
            at = row.python.relative_to(ROOT)
            print(f"{row.name} is left out: there is no {at}; `make peers` makes it")
        elif row.library == "flax" and options.flax_checkout is None:
            print(
                f"{row.name} is left out: --flax-checkout FOLDER has the code, of "
                "github.com/google-research/vision_transformer"
            )
        else:
            rows.append(row)
    return rows


def groups(rows: list[Row], together: int) -> list[list[Row]]:
    """Divides the rows into groups of at most `together`; the first is in each one."""
    reference, *others = rows
    each = together - 1
    parts = [others[start : start + each] for start in range(0, len(others), each)]
    return [[reference, *part] for part in parts or [[]]]


def draw(measured: list[Figures], work: Work, path: Path, title: str) -> None:
    """Draws images per second as bars, ours in another color, with shares of peak."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    height = 1.2 + 0.32 * len(measured)
    figure, panels = plt.subplots(1, 2, figsize=(11, height), facecolor="white")
    for panel, what in zip(panels, ("forward", "training"), strict=True):
        rows = [row for row in measured if row.has(what)]
        rates = {row.name: work.images(row, what) for row in rows}
        rows.sort(key=lambda row: statistics.median(rates[row.name]))
        middles = [statistics.median(rates[row.name]) for row in rows]
        ends = [
            [middle - min(rates[row.name]) for row, middle in zip(rows, middles)],  # noqa: B905
            [max(rates[row.name]) - middle for row, middle in zip(rows, middles)],  # noqa: B905
        ]
        panel.barh(
            [row.name for row in rows],
            middles,
            xerr=ends,
            color=["#c8553d" if row.side == "ours" else "#9aa5b1" for row in rows],
            error_kw={"ecolor": "#333333", "capsize": 2, "elinewidth": 1},
        )
        for place, row in enumerate(rows):
            share = statistics.median(work.shares(row, what))
            at = max(rates[row.name])
            panel.annotate(
                f"{share:.0%} of peak",
                (at, place),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color="#333333",
            )
        panel.set_xlim(0, 1.35 * max((max(rates[row.name]) for row in rows), default=1))
        panel.set_title(what, loc="left", fontsize=10)
        panel.set_xlabel("images/s")
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    variants = [*VARIANTS, *CONVOLUTIONAL]
    parser.add_argument("--variant", choices=variants, default="ViT-B/16")
    parser.add_argument("--image-size", type=int, default=224, help="default 224")
    parser.add_argument("--batch", type=int, help="default 8")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[row.name for row in ROWS],
        metavar="ROW",
        help="in addition to the reference: " + ", ".join(row.name for row in ROWS),
    )
    parser.add_argument(
        "--together", type=int, default=6, help="processes at a time (default 6)"
    )
    parser.add_argument(
        "--starts", type=int, default=3, help="first predictions (default 3)"
    )
    parser.add_argument(
        "--flax-checkout", type=Path, metavar="FOLDER", help="the official code"
    )
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument(
        "--sweep", action="store_true", help="sweep batches; always on a GPU"
    )
    parser.add_argument(
        "--models",
        nargs="+",
        default=sweep.MODELS,
        metavar="VARIANT@PIXELS",
        help="models of a sweep (default: " + " ".join(sweep.MODELS) + ")",
    )
    parser.add_argument(
        "--smallest", type=int, default=32, help="first batch of a sweep (default 32)"
    )
    parser.add_argument(
        "--most", type=int, default=4096, help="largest batch to try (default 4096)"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="minimum of a round (default 1)"
    )
    parser.add_argument(
        "--peak", type=float, metavar="TFLOPS", help="the device's, if it is unknown"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for figures")
    options = parser.parse_args(arguments)
    options.batch = options.batch or 8
    options.sweep |= options.device == "gpu"
    options.smallest = min(options.smallest, options.most)
    if options.smallest < 1 or options.seconds < 0 or (options.peak or 1) <= 0:
        parser.error("--smallest, --most and --peak are positive, --seconds 0 or more")
    try:
        for model in options.models:
            sweep.split(model)
    except ValueError as error:
        parser.error(f"--models: {error}")
    if options.together < 2 or min(options.rounds, options.batch) < 1:
        parser.error("--together is 2 or more, --rounds and --batch are 1 or more")
    if options.starts < 0:
        parser.error("--starts is 0 or more")
    checkout = options.flax_checkout
    if checkout is not None and not (checkout / "vit_jax/models_vit.py").is_file():
        parser.error(
            f"--flax-checkout: there is no vit_jax/models_vit.py in {checkout}"
        )
    return options


def swept(options: argparse.Namespace, rows: list[Row]) -> None:
    """Sweeps the batches of each model, one process at a time."""
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:

        def start(row: Row, model: str, batch: int) -> Worker:
            variant, side = sweep.split(model)
            own = {"variant": variant, "image_size": side, "batch": batch}
            given = argparse.Namespace(**vars(options) | own)
            return Bench(given, Path(folder)).start(row)

        sweep.run(options, rows, start, progress)


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints the table."""
    options = parse(arguments)
    rows = chosen(options)
    if options.sweep:
        swept(options, rows)
        return
    title = (
        f"{options.variant}, {options.image_size} px, batch {options.batch}, "
        f"float32, {os.cpu_count()} threads, {options.rounds} rounds"
    )
    print(f"{title}; the reference is {rows[0].name}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="peers-"))
    measured: list[Figures] = []
    try:
        bench = Bench(options, folder)
        for group in groups(rows, options.together):
            done = bench.group(group)
            print(HEADER)
            for figures in done:
                print(line(figures, bench.work()), flush=True)
            measured += done[bool(measured) :]
        bench.starts(rows, measured)
    finally:
        shutil.rmtree(folder)
    work = bench.work()
    print("", HEADER, *(line(figures, work) for figures in measured), "", sep="\n")
    print(*verdicts(measured, rows[0].name), sep="\n")
    installed = {" ".join(pair) for row in measured for pair in row.versions.items()}
    print(f"With {', '.join(sorted(installed))}")
    if options.plot:
        draw(measured, work, options.plot, title)
    if options.json:
        told = {
            "title": title,
            "machine": platform.processor() or platform.machine(),
            "work": dataclasses.asdict(work),
            "rows": [dataclasses.asdict(figures) for figures in measured],
        }
        options.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
