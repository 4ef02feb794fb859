"""Does the steps of ``world.py`` to real files: how people copy, overwrite, move, break and mend. No server in here.

ROOT/repository/<model>      a directory, a link into ROOT/linked, or a link to a small disk of its own
ROOT/moved/<model>.<n>       base paths that a config file names
ROOT/models.yaml             the config file
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from artefacts import MODEL_FILE, Artefacts, Files
from world import HOME, Model, Quality, Step

from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.core.publish import publish
from tfs_lite.core.status import ServingError

SMALL_DISK_KIB = 160
"""Of the disk of a model that fills up."""
LITTER = ("._model.pt2", ".DS_Store", "Thumbs.db", ".nfs000000000000abcd00000001", "lost+found/", "__pycache__/")
"""What no publisher writes; a slash ends the name of a directory."""
EDITORS = (".model.pt2.swp", "config.pbtxt~")
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_OLD = 3600.0


def exchange(one: Path, other: Path) -> None:
    """Swaps two names in one step (renameat2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = [os.fsencode(path) for path in (one, other)]
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one))


class Disk:
    """The files of one world. Steps of different models may be done by different threads."""

    def __init__(self, root: Path, artefacts: Artefacts) -> None:
        self.root = root
        self.repository = root / "repository"
        self.config_file = root / "models.yaml"
        self.repository.mkdir(parents=True)
        for name in ("moved", "linked", "small", "disks", "staging"):
            (root / name).mkdir()
        self._artefacts = artefacts
        self._lock = threading.Lock()  # guards the number of staging names
        self._count = 0

    # Where things are.

    def base(self, model: str, place: str = HOME) -> Path:
        if place == HOME:
            return self.repository / model
        return self.root / "moved" / f"{model}.{place}"

    def _staging(self, near: Path | None = None) -> Path:
        """A name that is not there yet; on the disk of ``near``, hidden there."""
        with self._lock:
            self._count += 1
            name = f"{self._count}"
        if near is None:
            return self.root / "staging" / name
        return near / f".incoming-{name}"

    # Whole directories.

    def make(self, model: Model) -> None:
        """Writes every version of the model, long ago, and its config."""
        base = self.base(model.name)
        if "small" in model.kind:
            base.symlink_to(self._small_disk(model.name))
        elif "link" in model.kind:
            target = self.root / "linked" / f"{model.name}.0"
            target.mkdir()
            base.symlink_to(target)
        else:
            base.mkdir()
        for version, content in (model.places[HOME].versions or {}).items():
            self._write_old(base / str(version), self._files(model, content.serial))

    def _small_disk(self, model: str) -> Path:
        """A disk of its own, mounted at the place that is returned."""
        disk, path = self.root / "disks" / model, self.root / "small" / model
        disk.mkdir()
        path.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_KIB}k", "soak", disk)
        _run("mount", "--bind", disk, path)
        return path

    def close(self) -> None:
        """Takes the small disks away."""
        for path in [*(self.root / "small").iterdir(), *(self.root / "disks").iterdir()]:
            subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)

    @staticmethod
    def can_mount(directory: Path) -> bool:
        """Whether small disks can be made here."""
        directory.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", "size=16k", "soak", str(directory)]
        if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
            return False
        subprocess.run(["umount", "-l", str(directory)], check=False, capture_output=True)
        return True

    def _files(self, model: Model, serial: int) -> Files:
        return self._artefacts.files(model.kind.split("+")[0], serial)

    def _write_old(self, directory: Path, files: Files) -> None:
        """Writes all of it, with the times of an hour ago, as archives and ``rsync -a`` bring them."""
        directory.mkdir(parents=True)
        for name, data in files.items():
            (directory / name).write_bytes(data)
        _age(directory)

    # Steps.

    def do(self, step: Step, model: Model, pace: random.Random) -> str:
        """Does the step; ``model`` is the state before it. Returns a remark of what was different from the plan, empty
        if nothing was."""
        how, _, place = step.how.partition("@")
        base = self.base(model.name, place or HOME)
        try:
            return str(getattr(self, f"_do_{step.kind}")(step, model, base, how, pace) or "")
        except FileNotFoundError as error:
            return f"not done: {error}"  # a step before it was cut away
        except FileExistsError as error:
            return f"not done: {error}"

    def _do_push(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> str:
        return self._put(base / str(step.version), self._files(model, step.serial), how, pace)

    def _put(self, directory: Path, files: Files, how: str, pace: random.Random) -> str:
        base = directory.parent
        if how == "publish":
            source = self._staging()
            self._write_old(source, files)
            try:
                publish(str(source), str(base), int(directory.name))
            except ServingError as error:
                return f"publish: {error}"
            finally:
                shutil.rmtree(source)
        elif how in ("mv", "two_mv"):
            staged = self._staging(base)
            self._write_old(staged, files)
            staged.rename(directory)
        elif how == "rsync":
            directory.mkdir()
            for name, data in files.items():
                hidden = directory / f".{name}.Xq3Zy7"
                _write_slowly(hidden, data, pace)
                _age(hidden)
                hidden.rename(directory / name)
            _age(directory)
        elif how == "tar":
            directory.mkdir()
            for name, data in files.items():
                _write_slowly(directory / name, data, pace)
                _age(directory / name)
            _age(directory)
        else:
            directory.mkdir()
            for name, data in files.items():
                _write_slowly(directory / name, data, pace, slow=how == "slow")
        return ""

    def _do_half(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        """The copy stops in the middle of its last file."""
        directory = base / str(step.version)
        directory.mkdir()
        self._write_half(directory, self._files(model, step.serial), model, 0.6, pace)

    def _write_half(self, directory: Path, files: Files, model: Model, share: float, pace: random.Random) -> None:
        last = MODEL_FILE[model.kind.split("+")[0]]
        for name in sorted(files, key=lambda name: name == last):
            data = files[name]
            _write_slowly(directory / name, data if name != last else data[: int(len(data) * share)], pace)

    def _do_finish(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        directory = base / str(step.version)
        for name, data in self._files(model, step.serial).items():
            path = directory / name
            done = path.stat().st_size if path.exists() else 0
            with path.open("ab") as file:
                file.write(data[done:])

    def _do_bad(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        directory = base / str(step.version)
        directory.mkdir()
        for name, data in self._artefacts.bad_files(model.kind.split("+")[0], step.serial, how).items():
            _write_slowly(directory / name, data, pace)

    def _do_again(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> str:
        return self._replace(base / str(step.version), self._files(model, step.serial), how, pace)

    def _do_again_bad(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> str:
        files = self._artefacts.bad_files(model.kind.split("+")[0], step.serial, "truncated")
        return self._replace(base / str(step.version), files, how, pace)

    def _replace(self, directory: Path, files: Files, how: str, pace: random.Random) -> str:
        """Other content under the same number."""
        if how in ("rm_cp", "rm_rsync"):
            shutil.rmtree(directory)
            time.sleep(pace.choice((0.0, 0.0, 0.3)))
            return self._put(directory, files, "cp" if how == "rm_cp" else "rsync", pace)
        if how == "two_mv":
            staged, away = self._staging(directory.parent), self._staging(directory.parent)
            self._write_old(staged, files)
            directory.rename(away)
            time.sleep(pace.choice((0.0, 0.0, 0.2)))
            staged.rename(directory)
            shutil.rmtree(away)
        elif how == "exchange":
            staged = self._staging(directory.parent)
            self._write_old(staged, files)
            exchange(staged, directory)
            shutil.rmtree(staged)
        else:
            directory.stat()
            (directory / MANIFEST_NAME).unlink(missing_ok=True)  # else the files would never be as it lists them
            for name, data in files.items():
                if how == "rename_over":
                    hidden = directory / f".{name}.tmp"
                    hidden.write_bytes(data)
                    hidden.rename(directory / name)
                else:
                    _write_slowly(directory / name, data, pace, truncate=how != "cp_over")
        return ""

    def _do_rm(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        shutil.rmtree(base / str(step.version))

    def _do_litter(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        """What file managers, file systems and editors leave, beside the versions and in the newest one."""
        inside = [path for path in base.iterdir() if path.name.isdecimal()]
        for directory in [base, *sorted(inside)[-1:]]:
            for name in (*LITTER, *EDITORS):
                path = directory / name.rstrip("/")
                if name.endswith("/"):
                    path.mkdir(exist_ok=True)
                    (path / "#1234").write_bytes(b"\0")
                elif not path.exists():
                    path.write_bytes(b"\x00\x05\x16\x07" + pace.randbytes(60))

    def _do_touch(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        """A training run writes its log beside the versions."""
        for _ in range(8):
            with (base / "train.log").open("a") as file:
                file.write("step 1 loss 0.5\n" * 10)
            time.sleep(0.3)

    def _do_odd(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        """Names that are no text, and a number that is no version, for a moment or for ever."""
        odd = [os.fsencode(self.repository) + b"/caf\xe9", os.fsencode(base) + b"/\xff\xfe"]
        odd.append(os.fsencode(base) + b"/99999999999999999999")
        for path in odd:
            os.makedirs(path + b"/1", exist_ok=True)
        if pace.random() < 0.5:
            time.sleep(2.5)
            for path in odd:
                shutil.rmtree(path)

    def _do_unmount(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        if model.unmounted is None:
            _run("umount", "-l", self.root / "small" / model.name)

    def _do_mount(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        if model.unmounted is not None:
            _run("mount", "--bind", self.root / "disks" / model.name, self.root / "small" / model.name)

    def _do_policy(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        """``config.yaml`` beside the versions, written at once or line by line."""
        path = base / "config.yaml"
        text = f"# which versions are served\nversion_policy: {step.policy.yaml}\n"
        (base / "config.pbtxt").unlink(missing_ok=True)
        if how == "slow":
            with path.open("w") as file:
                for line in text.splitlines(keepends=True):
                    file.write(line)
                    file.flush()
                    time.sleep(0.1)
        else:
            hidden = path.with_name(".config.yaml.new")
            hidden.write_text(text)
            hidden.rename(path)

    def _do_break_config(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        path = base / "config.yaml"
        if path.exists():
            path.rename(base / ".config.yaml.before")
        broken = {"field": "version_polcy: {latest: {num_versions: 2}}\n", "syntax": "version_policy: {latest: [\n"}
        path.write_text(broken[how])

    def _do_mend_config(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        path, before = base / "config.yaml", base / ".config.yaml.before"
        path.unlink()
        if before.exists():
            before.rename(path)

    def _do_link(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        """A new release is put beside the old one, and the link is switched to it."""
        target = self.root / "linked" / f"{model.name}.{step.serial}"
        self._fill(target, step, model, pace)
        hidden = self.repository / f".{model.name}.link"
        hidden.symlink_to(target)
        hidden.rename(base)

    def _fill(self, target: Path, step: Step, model: Model, pace: random.Random) -> None:
        target.mkdir()
        for version, content in step.files:
            files = self._files(model, content.serial)
            directory = target / str(version)
            if content.quality is Quality.GOOD:
                self._write_old(directory, files)
            else:
                directory.mkdir()
                self._write_half(directory, files, model, 0.6, pace)

    def _do_move(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        """The files of another base path; the config file names it afterwards."""
        if how != "missing":
            self._fill(self.base(model.name, f"moved{step.serial}"), step, model, pace)

    def _do_remove(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        if how == "mv":
            base.rename(self._staging())
        else:
            shutil.rmtree(base)

    def _do_add(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> None:
        if how == "mv":
            staged = self._staging()
            self._fill(staged, step, model, pace)
            staged.rename(base)
            return
        base.mkdir()
        for version, content in step.files:
            self._put(base / str(version), self._files(model, content.serial), "cp", pace)

    def _do_fill(self, step: Step, model: Model, base: Path, how: str, pace: random.Random) -> str:
        """Something else fills the disk, so the copy ends in the middle; the something goes afterwards."""
        directory, ballast = base / str(step.version), base / ".ballast"
        files = self._files(model, step.serial)
        directory.mkdir()
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            free = os.statvfs(base).f_bavail * os.statvfs(base).f_frsize
            if free > 1024 * SMALL_DISK_KIB:
                return "this is no small disk"
            file.write(bytes(max(0, free - 4096)))
            file.flush()
        remark = "the disk was not full"
        try:
            for name, data in files.items():
                (directory / name).write_bytes(data)
        except OSError as error:
            remark = "" if error.errno == errno.ENOSPC else str(error)
        with contextlib.suppress(ServingError, OSError):
            source = self._staging()
            self._write_old(source, files)
            try:
                publish(str(source), str(base), step.version + 1)
                remark += "; publish to a full disk succeeded"
            finally:
                shutil.rmtree(source)
        ballast.unlink(missing_ok=True)
        return remark

    # The config file.

    def config_text(self, models: Mapping[str, Model]) -> str:
        lines = ["model_config_list:", "  config:"]
        for model in models.values():
            if not model.listed:
                continue
            lines += [f"  - name: {model.name}", f"    base_path: {self.base(model.name, model.path)}"]
            lines.append(f"    model_version_policy: {model.file_policy.yaml}")
            if model.labels:
                lines.append("    version_labels: {" + ", ".join(f"{name}: {to}" for name, to in model.labels) + "}")
        return "\n".join(lines) + "\n"

    def write_config(self, models: Mapping[str, Model], how: str = "") -> None:
        text = self.config_text(models)
        if how == "slow":
            self._write_config_slowly(text)
        else:
            hidden = self.config_file.with_name(".models.yaml.new")
            hidden.write_text(text)
            hidden.rename(self.config_file)

    def _write_config_slowly(self, text: str) -> None:
        """As a template engine or an editor on a slow disk writes it: in place, some entries at a time."""
        pieces = list(_pieces(text.splitlines(keepends=True), 8))
        with self.config_file.open("w") as file:
            for piece in pieces:
                file.write(piece)
                file.flush()
                time.sleep(3.0 / len(pieces))

    def break_config(self, models: Mapping[str, Model], how: str) -> None:
        """In place, at once."""
        text = self.config_text(models)
        wrong = {
            "syntax": text + "  - name: [\n",
            "field": text + "    base_pth: /nowhere\n",
            "double": text + "\n".join(text.splitlines()[2:4]) + "\n",
            "empty": "",
        }
        self.config_file.write_text(wrong[how])


def _run(*command: str | Path) -> None:
    subprocess.run(list(map(str, command)), check=True, capture_output=True)


def _pieces(lines: list[str], count: int) -> Iterator[str]:
    size = max(1, len(lines) // count)
    for start in range(0, len(lines), size):
        yield "".join(lines[start : start + size])


def _age(path: Path) -> None:
    """Gives the file, or all files of the directory, the times of an hour ago."""
    when = time.time() - _OLD
    for one in [path, *(path.iterdir() if path.is_dir() else ())]:
        os.utime(one, (when, when))


def _write_slowly(path: Path, data: bytes, pace: random.Random, truncate: bool = True, slow: bool = False) -> None:
    """In up to 4 pieces with pauses between them; ``truncate`` False: over what is there."""
    cuts = sorted(pace.randrange(len(data) + 1) for _ in range(3))
    with path.open("wb" if truncate or not path.exists() else "r+b") as file:
        for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
            file.write(data[start:stop])
            file.flush()
            time.sleep(pace.random() * (0.8 if slow else 0.15))
        if not truncate:
            file.truncate()
