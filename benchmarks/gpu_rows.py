"""The rows of ``gpu_first.py`` that need no server: each is a generator of figures, in the order in which they matter.

Times are seconds unless a name says otherwise, sizes bytes. On the CPU (``--device cpu --quick``) what needs CUDA says
so in a figure of its own, and the rest runs.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import generation_gpu
import gpu
import gpu_models
import numpy as np
import torch
from torch import Tensor

Result = dict[str, Any]
NEEDS_CUDA = {"left_out": "needs a CUDA device"}
ROOT = Path(__file__).resolve().parent.parent
COUNTS = (1, 8, 32, 128)
GB = 1e9


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a row measures. ``folder``: where models are written beside it. ``seconds``: its own cap."""

    device: torch.device
    quick: bool
    folder: Path
    seconds: float

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def counts(self) -> tuple[int, ...]:
        return COUNTS[:2] if self.quick else COUNTS

    def model(self, name: str) -> Path:
        """The base path of a model of ``gpu_models.jobs``, once it is written."""
        return gpu_models.written(self.folder, name, self.seconds)

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def pinned(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if self.cuda else tensor

    def seconds_per_call(self, once: Callable[[], object], seconds: float = 0.25) -> float:
        """The median over bursts of calls, each burst waited for once: what the device takes where it is the slower."""
        seconds = 0.02 if self.quick else seconds
        for _ in range(3):
            once()
        self.synchronize()
        burst, bursts = 1, list[float]()
        ends = time.perf_counter() + seconds
        while not bursts or time.perf_counter() < ends:
            began = time.perf_counter()
            for _ in range(burst):
                once()
            self.synchronize()
            took = time.perf_counter() - began
            bursts.append(took / burst)
            if took < seconds / 20:
                burst, bursts = burst * 2, []
        return statistics.median(bursts)


# 1. Tests


def tests(bench: Bench) -> Iterator[Result]:
    """``tests/gpu``, every one of them: counts, and the names of those that fail."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "tests.xml")
        command = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-p", "no:cacheprovider", f"--junitxml={found}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if not found.exists():
            raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-200:]}")
        cases = list(ElementTree.parse(found).getroot().iter("testcase"))
    failed = [case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    yield {"passed": len(cases) - len(failed) - skipped, "failed": failed, "skipped": skipped}


# 2. Ceilings


def ceilings(bench: Bench) -> Iterator[Result]:
    nbytes = 1 << 20 if bench.quick else 1 << 30
    on_device = torch.zeros(nbytes // 4, device=bench.device)
    other, pageable = torch.empty_like(on_device), torch.zeros(nbytes // 4)
    pinned = bench.pinned(pageable)
    copies: list[tuple[str, Tensor, Tensor, int]] = [
        ("device to device, read and written", other, on_device, 2),
        ("pinned to device", on_device, pinned, 1),
        ("device to pinned", pinned, on_device, 1),
        ("pageable to device", on_device, pageable, 1),
        ("device to pageable", pageable, on_device, 1),
    ]
    for name, into, source, passes in copies:
        took = bench.seconds_per_call(lambda into=into, source=source: into.copy_(source, non_blocking=True))  # type: ignore[misc]
        yield {"copy": name, "gb_per_second": passes * nbytes / took / GB}
    del other, pageable, pinned, on_device, copies
    size = 256 if bench.quick else 8192
    for name, dtype in gpu_models.DTYPES.items():
        one = torch.zeros(size, size, dtype=dtype, device=bench.device)
        took = bench.seconds_per_call(lambda one=one: one @ one)  # type: ignore[misc]
        yield {"matmul": name, "size": size, "tflops": 2 * size**3 / took / 1e12}
    if not bench.cuda:
        yield {"graph": "replay of a kernel that does nothing"} | NEEDS_CUDA
        return
    tiny = torch.zeros(1, device=bench.device)
    took = bench.seconds_per_call(recorded(lambda: tiny.add_(1)).replay)
    launched = bench.seconds_per_call(lambda: tiny.add_(1))
    yield {"graph": "replay of a kernel that does nothing", "microseconds": took * 1e6, "eager": launched * 1e6}


def recorded(once: Callable[[], object]) -> Any:
    """A CUDA graph of the call, after ordinary ones on another stream, as torch asks for."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    return graph


# 3. Bare loops


class BareLoop:
    """A module with inputs of so many rows, and nothing around it."""

    def __init__(self, bench: Bench, case: gpu_models.Case, dtype: str) -> None:
        self._bench, self._case = bench, case
        self._module = case.module(dtype).to(bench.device)

    def rates(self, rows: int) -> Result:
        """Rows per second: eager, replayed, and replayed with the way from and to pinned memory and a wait, which is
        what a server's run has to do."""
        bench = self._bench
        host = bench.pinned(torch.from_numpy(self._case.rows(rows)))
        inside = host.to(bench.device)
        result: Tensor | None = None

        def forward() -> None:
            nonlocal result
            result = self._module(inside)["y"]

        with torch.inference_mode():
            found: Result = {"eager": rows / bench.seconds_per_call(forward)}
            if not bench.cuda:
                return found
            graph = recorded(forward)
            assert result is not None
            back = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)

            def whole() -> None:
                inside.copy_(host, non_blocking=True)
                graph.replay()
                back.copy_(result, non_blocking=True)
                torch.cuda.current_stream().synchronize()

            found["graph"] = rows / bench.seconds_per_call(graph.replay)
            found["graph_and_copies"] = rows / bench.seconds_per_call(whole)
            graph.reset()
        return found


def bare_loops(bench: Bench) -> Iterator[Result]:
    for case in gpu_models.cases(bench.quick):
        for dtype in gpu_models.DTYPES:
            loop = BareLoop(bench, case, dtype)
            for rows in bench.counts:
                yield {"model": case.name, "dtype": dtype, "rows": rows} | loop.rates(rows)


# 5. Lanes, graphs, pinned inputs, copies of results


def variants(bench: Bench) -> Iterator[Result]:
    rounds, seconds = (1, 0.05) if bench.quick else (2, 0.3)
    for name, counts in gpu.ROWS.items():
        case, version = gpu_models.case(name, bench.quick), bench.model(f"{name}-fp32") / "1"
        plain, graphed = (gpu.opened(version, graphs, str(bench.device)) for graphs in (False, True))
        for rows in counts[: 1 if bench.quick else None]:
            for pair, (one, other) in gpu.pairs(plain, graphed, case, rows).items():
                if bench.cuda or "pinned" not in pair:
                    yield {"model": name, "rows": rows, "pair": pair} | gpu.compare(one, other, rounds, seconds)
        plain.close()
        graphed.close()
    if bench.cuda:
        yield from _result_copies(bench)
    else:
        yield {"pair": "pinned inputs, copies of results"} | NEEDS_CUDA


def _result_copies(bench: Bench) -> Iterator[Result]:
    """From the device to an array of the caller's: into pinned memory of torch's cache, which the caller keeps, or into
    one pinned buffer and from there into numpy's memory."""
    for nbytes in (4 << 10, 64 << 10, 1 << 20, 8 << 20):
        source = torch.zeros(nbytes, dtype=torch.uint8, device=bench.device)
        kept = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        view = kept.numpy()

        def fresh() -> object:
            found = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)  # noqa: B023
            found.copy_(source, non_blocking=True)  # noqa: B023
            torch.cuda.current_stream().synchronize()
            return found.numpy()

        def through_one() -> object:
            kept.copy_(source, non_blocking=True)  # noqa: B023
            torch.cuda.current_stream().synchronize()
            return view.copy()  # noqa: B023

        first, second = bench.seconds_per_call(fresh), bench.seconds_per_call(through_one)
        pair = {"pair": "fresh pinned -> one buffer and a copy", "bytes": nbytes}
        yield pair | {"first": 1 / first, "second": 1 / second, "ratio": first / second}


# 6. Memory


def _first(models: Sequence[Any], request: object) -> Any:
    """The model itself in place of a servable: nothing queues its runs."""
    return models[0]


def memory(bench: Bench) -> Iterator[Result]:
    """Loads and unloads beside a version that stays, as the server does them, with the account that it keeps."""
    from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
    from tfs_lite.adapters.platforms import PLATFORMS
    from tfs_lite.core.servable import ServableId
    from tfs_lite.operations.history.memory import AccountedLoader, MemoryAccounts

    accounts = MemoryAccounts()
    settings = AdapterSettings(_first, str(bench.device))

    held_by = dict[str, Any]()

    def loaded(name: str) -> AccountedLoader:
        servable_id = ServableId(name, 1)
        loader = ArtifactLoader(str(bench.model(name) / "1"), "", settings, PLATFORMS, name)
        accounted = AccountedLoader(servable_id, loader, accounts)
        accounted.load(servable_id)
        accounted.servable.run("", {"x": np.zeros((1, *item_of(name)), np.float32)}, ())
        held_by[name] = accounted.servable.measured_bytes()
        return accounted

    def held() -> int:
        return torch.cuda.mem_get_info(bench.device)[0] if bench.cuda else 0

    staying = loaded("mlp-fp32")
    for name in ("wide", "small"):
        free = []
        for _ in range(3 if bench.quick else 12):
            loaded(name).unload()
            gc.collect()
            free.append(held())
        yield {"model": name, "cycles": len(free), "free_after_each": free, "leaked_after_first": free[0] - free[-1]}
        yield {"model": name, "held": held_by[name], "account": accounts.of(name)[0].as_json()}
    staying.unload()
    if bench.cuda:
        stats = torch.cuda.memory_stats(bench.device)
        names = ("reserved_bytes.all.current", "allocated_bytes.all.current", "inactive_split_bytes.all.current")
        yield {"at_the_end": {name: stats.get(name, 0) for name in names}, "free": held()}
        snapshot: Any = torch.cuda.memory_snapshot
        yield {"segments": [{"size": segment["total_size"]} for segment in snapshot()][:20]}


def item_of(name: str) -> tuple[int, ...]:
    return (256,) if name.startswith("mlp") else (16,)


# 7. A large load beside a model under traffic


class Traffic:
    """One thread that runs a model of one row again and again, and how long each run took."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._took: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        x = {"x": np.zeros((1, 256), np.float32)}
        while not self._stop.wait(0.0005):
            began = time.perf_counter()
            self._model.run("", x, ())
            self._took.append(time.perf_counter() - began)

    def p99(self, during: Callable[[], object]) -> float:
        """In milliseconds, of the runs that ended while ``during`` ran."""
        begins = len(self._took)
        during()
        took = self._took[begins:]
        return float(np.percentile(took, 99)) * 1e3 if took else float("nan")

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def load_beside(bench: Bench) -> Iterator[Result]:
    """The load as it is, then bare copies as it might be: in chunks of a size, on a stream of a priority."""
    from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
    from tfs_lite.adapters.platforms import PLATFORMS
    from tfs_lite.core.servable import ServableId

    serving = gpu.opened(bench.model("mlp-fp32") / "1", False, str(bench.device))
    traffic = Traffic(serving)
    calm = 0.2 if bench.quick else 2.0
    steady = traffic.p99(lambda: time.sleep(calm))
    yield {"steady_p99_ms": steady}
    if bench.cuda:
        for result in _chunks(bench, traffic):
            yield result | {"to_steady": result["p99_ms"] / steady}
    else:
        yield {"chunks and priorities": NEEDS_CUDA["left_out"]}
    version = bench.model("huge") / "1"
    settings = AdapterSettings(_first, str(bench.device))
    loader = ArtifactLoader(str(version), "", settings, PLATFORMS, "huge")
    began = time.perf_counter()
    p99 = traffic.p99(lambda: loader.load(ServableId("huge", 1)))
    took, nbytes = time.perf_counter() - began, (version / "model.pt2").stat().st_size
    yield {
        "load": "as it is",
        "bytes": nbytes,
        "seconds": took,
        "gb_per_second": nbytes / took / GB,
        "p99_ms": p99,
        "to_steady": p99 / steady,
        "met": p99 <= 1.2 * steady,
    }
    traffic.close()
    loader.unload()
    serving.close()


def _chunks(bench: Bench, traffic: Traffic) -> Iterator[Result]:
    total = 4 << 30
    into = torch.empty(256 << 20, dtype=torch.uint8, device=bench.device)
    pinned = torch.zeros(256 << 20, dtype=torch.uint8, pin_memory=True)
    pageable = torch.zeros(256 << 20, dtype=torch.uint8)
    for chunk, priority, source in [
        *((size << 20, 0, pinned) for size in (16, 64, 256)),
        *((size << 20, -1, pinned) for size in (16, 64, 256)),
        (64 << 20, 0, pageable),
    ]:
        stream = torch.cuda.Stream(bench.device, priority)  # type: ignore[no-untyped-call]

        def copy() -> None:
            with torch.cuda.stream(stream):  # noqa: B023
                for _ in range(total // chunk):  # noqa: B023
                    into[:chunk].copy_(source[:chunk], non_blocking=True)  # noqa: B023
                    stream.synchronize()  # noqa: B023

        began = time.perf_counter()
        p99 = traffic.p99(copy)
        took = time.perf_counter() - began
        yield {
            "load": "bare copies",
            "chunk": chunk,
            "priority": priority,
            "pinned": source is pinned,
            "gb_per_second": total / took / GB,
            "p99_ms": p99,
        }


# 9. Capture


def captures(bench: Bench) -> Iterator[Result]:
    """Seconds and bytes of each graph, largest first and last, in one pool each time."""
    from tfs_lite.adapters.cuda.graphs import capture_on
    from tfs_lite.adapters.cuda.memory import DEVICE_LOCKS, MemoryPool

    if not bench.cuda:
        yield dict(NEEDS_CUDA)
        return
    counts = [2**power for power in range(8)]
    for case in gpu_models.cases(bench.quick):
        module = case.module("bf16").to(bench.device)
        for order in (sorted(counts, reverse=True), sorted(counts)):
            stream = torch.cuda.Stream(bench.device)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream), torch.inference_mode():
                pool, made = MemoryPool(bench.device), list[Any]()
                began = time.perf_counter()
                each = []
                for rows in order:
                    before, start = torch.cuda.memory_reserved(bench.device), time.perf_counter()
                    host = [torch.from_numpy(case.rows(rows)).pin_memory()]
                    with DEVICE_LOCKS.of(bench.device):
                        made.append(capture_on(bench.device, pool)(host, lambda x: module(x)["y"]))  # noqa: B023
                    took = time.perf_counter() - start
                    grown = torch.cuda.memory_reserved(bench.device) - before
                    each.append({"rows": rows, "seconds": took, "reserved": grown})
                took = time.perf_counter() - began
                for captured in made:
                    captured.forget()
                made.clear()
                pool.drop()
            first = "largest first" if order[0] > order[-1] else "smallest first"
            yield {"model": case.name, "order": first, "seconds": took, "met": took < 2.0, "graphs": each}


# 10. Other runtimes


def runtimes(bench: Bench) -> Iterator[Result]:
    """resnet18 in float32 by each runtime, rows per second with inputs on the device, to the graph loop."""
    rows = 2 if bench.quick else 32
    case = gpu_models.case("resnet18", bench.quick)
    bare = BareLoop(bench, case, "fp32").rates(rows)
    base = bare.get("graph", bare["eager"])
    yield {"runtime": "torch, graph" if "graph" in bare else "torch, eager", "rows": rows, "rate": base}
    kinds: Sequence[tuple[str, Callable[[Bench, gpu_models.Case, int], Result]]] = (
        ("onnxruntime", _onnxruntime),
        ("torch.compile", _compiled),
        ("AOTInductor", _aoti),
    )
    for name, measure in kinds:
        try:
            found = measure(bench, case, rows)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        if "rate" in found:
            found["to_graph"] = found["rate"] / base
        yield {"runtime": name, "rows": rows} | found


def _compiled(bench: Bench, case: gpu_models.Case, rows: int) -> Result:
    if bench.quick:
        return {"left_out": "it compiles for longer than --quick is for"}
    module, x = case.module("fp32").to(bench.device), torch.from_numpy(case.rows(rows)).to(bench.device)
    began = time.perf_counter()
    with torch.inference_mode():
        compiled = torch.compile(module, mode="reduce-overhead")
        compiled(x)
        took = time.perf_counter() - began
        return {"compile_seconds": took, "rate": rows / bench.seconds_per_call(lambda: compiled(x))}


def _aoti(bench: Bench, case: gpu_models.Case, rows: int) -> Result:
    if bench.quick:
        return {"left_out": "it compiles for longer than --quick is for"}
    module, x = case.module("fp32").to(bench.device), torch.from_numpy(case.rows(rows)).to(bench.device)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        program = torch.export.export(module, (x,))
        began = time.perf_counter()
        package = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/model.pt2")
        took = time.perf_counter() - began
        run = torch._inductor.aoti_load_package(package)
        return {"compile_seconds": took, "rate": rows / bench.seconds_per_call(lambda: run(x))}


def _onnxruntime(bench: Bench, case: gpu_models.Case, rows: int) -> Result:
    import onnxruntime

    provider = "CUDAExecutionProvider" if bench.cuda else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        return {"left_out": f"onnxruntime {onnxruntime.__version__} has no {provider}"}
    module, host = case.module("fp32"), case.rows(rows)
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/model.onnx"
        torch.onnx.export(module, (torch.from_numpy(host),), file, dynamo=True)
        free = torch.cuda.mem_get_info(bench.device)[0] if bench.cuda else 0
        session = onnxruntime.InferenceSession(file, providers=[provider])
        binding = session.io_binding()
        device = bench.device.type
        value = onnxruntime.OrtValue.ortvalue_from_numpy(host, device, bench.device.index or 0)
        binding.bind_ortvalue_input(session.get_inputs()[0].name, value)
        binding.bind_output(session.get_outputs()[0].name, device, bench.device.index or 0)
        found: Result = {"rate": rows / bench.seconds_per_call(lambda: session.run_with_iobinding(binding))}
        if bench.cuda:
            found["taken"] = free - torch.cuda.mem_get_info(bench.device)[0]
            del session, binding, value
            gc.collect()
            found["left_after_del"] = free - torch.cuda.mem_get_info(bench.device)[0]
        return found


# 11. Decoder


def decoder(bench: Bench) -> Iterator[Result]:
    texts, prompt, tokens = ("1,2", 8, 4) if bench.quick else ("1,8,64", 64, 64)
    shape = "tiny" if bench.quick else "1b"
    options = Namespace(shape=shape, texts=texts, prompt=prompt, tokens=tokens, rounds=2, device=str(bench.device))
    bare = dict[int, float]()
    for count, rate in _bare_steps(bench, shape, [int(text) for text in texts.split(",")]):
        bare[count] = rate
        yield {"side": "bare steps", "texts": count, "tokens_per_second": rate}
    with contextlib.redirect_stdout(sys.stderr):
        for result in generation_gpu.run(options):
            to_bare = result["tokens_per_second"] / bare[result["texts"]]
            met = {"met": to_bare >= 0.9} if result["side"] == "ours, graphs" else {}
            yield result | {"to_bare_steps": to_bare} | met


def _bare_steps(bench: Bench, shape: str, counts: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Steps of one token for so many texts without a cache: what reading the weights alone allows."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        generation_gpu.save_network(shape, Path(folder), 1024, str(bench.device))
        network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        model = network.eval().to(bench.device)
    for count in counts:
        ids = torch.zeros(count, 1, dtype=torch.long, device=bench.device)

        def step() -> object:
            return model(input_ids=ids, use_cache=False).logits.argmax(-1)  # noqa: B023

        with torch.inference_mode():
            once = recorded(step).replay if bench.cuda else step
            yield count, count / bench.seconds_per_call(once)
