import threading

import pytest
import torch

from tests.support.errors import refusal
from tfs_lite.adapters import device
from tfs_lite.adapters.device import check_device, configure_torch_threads, machine_resources, usable_gpus, uses_gpu
from tfs_lite.core.resources import GPU, MAIN, RAM, GroupMemory, Resource, ResourceUtil
from tfs_lite.core.status import ServingError


@pytest.fixture
def gpus(monkeypatch):
    """Lets the machine have so many GPUs."""

    def have(count):
        monkeypatch.setattr(device, "gpu_count", lambda: count)

    return have


@pytest.mark.parametrize("setting", ["", "gpu", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cpu:0"])
def test_unknown_device_is_refused(setting):
    refusal(check_device, setting)


def test_gpu_that_is_not_there_is_refused(gpus):
    gpus(0)
    with pytest.raises(ServingError, match="torch finds no GPU"):
        check_device("cuda")
    gpus(2)
    check_device("cuda:1")
    with pytest.raises(ServingError, match="GPUs 0 to 1"):
        check_device("cuda:2")


def test_auto_is_a_gpu_when_there_is_one(gpus):
    gpus(0)
    assert usable_gpus("auto") == ()
    assert not uses_gpu("auto")
    gpus(1)
    assert usable_gpus("auto") == (0,)
    assert uses_gpu("auto")
    assert usable_gpus("cpu") == ()


def test_a_setting_that_names_a_gpu_is_for_that_one_alone(gpus):
    gpus(3)
    assert usable_gpus("cuda") == (0, 1, 2)
    assert usable_gpus("cuda:2") == (2,)


def test_machine_has_memory_and_a_limit_lowers_it():
    devices, total = machine_resources()
    assert devices[MAIN] == 1
    assert total.entries[Resource(MAIN, RAM, 0)] > 1 << 28
    ResourceUtil(devices).verify(total)
    assert total.bound
    _, limited = machine_resources(1000)
    assert limited.entries[Resource(MAIN, RAM, 0)] == 1000


def test_gpus_are_listed_with_their_memory(gpus, monkeypatch):
    gpus(2)

    class Properties:
        total_memory = 80

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    devices, total = machine_resources()
    assert devices[GPU] == 2
    assert total.entries[Resource(GPU, RAM, 1)] == 80


V2 = "0::/pod/container\n"
V1 = "5:cpu,cpuacct:/box\n4:memory:/box\n"
STATISTICS = """anon 600
file 900
shmem 150
file_mapped 250
inactive_file 400
active_file 350
slab_reclaimable 20
"""
OLD_STATISTICS = """active_file 1
inactive_file 1
total_shmem 150
total_mapped_file 250
total_inactive_file 400
total_active_file 350
"""
CONTROL_GROUPS = {
    "no groups": (None, {}, None),
    "a group without a limit": (V2, {"pod/container/memory.current": "100\n"}, None),
    "a limit that is none": (V2, {"pod/container/memory.max": "max\n", "pod/container/memory.current": "1\n"}, None),
    "a limit above the machine's memory": (
        V1,
        {"memory/box/memory.limit_in_bytes": "9223372036854771712\n", "memory/box/memory.usage_in_bytes": "1\n"},
        None,
    ),
    "a limit whose use cannot be read": (V2, {"pod/container/memory.max": "3000\n"}, None),
    "what is dropped does not count, what is mapped or in shared memory does": (
        V2,
        {
            "pod/container/memory.max": "3000\n",
            "pod/container/memory.high": "max\n",
            "pod/container/memory.current": "1800\n",
            "pod/container/memory.stat": STATISTICS,
        },
        GroupMemory(3000, 1800 - (750 - 100) - 20),
    ),
    "beyond memory.high processes stand still": (
        V2,
        {
            "pod/container/memory.max": "3000\n",
            "pod/container/memory.high": "2500\n",
            "pod/container/memory.current": "7\n",
        },
        GroupMemory(2500, 7),
    ),
    "the least room of two, not the lowest limit": (
        V2,
        {
            "pod/container/memory.max": "2000\n",
            "pod/container/memory.current": "500\n",
            "pod/memory.max": "3000\n",
            "pod/memory.current": "2900\n",
        },
        GroupMemory(3000, 2900),
    ),
    "the container's own group is the top": (
        "0::/\n",
        {"memory.max": "3000\n", "memory.current": "10\n"},
        GroupMemory(3000, 10),
    ),
    "old groups": (
        V1,
        {
            "memory/box/memory.limit_in_bytes": "3000\n",
            "memory/box/memory.usage_in_bytes": "1800\n",
            "memory/box/memory.stat": OLD_STATISTICS,
        },
        GroupMemory(3000, 1800 - (750 - 100)),
    ),
    "old groups, named as on the host": (
        "4:memory:/docker/0123\n",
        {"memory/memory.limit_in_bytes": "3000\n", "memory/memory.usage_in_bytes": "9\n"},
        GroupMemory(3000, 9),
    ),
}


@pytest.mark.parametrize(("groups", "files", "expected"), CONTROL_GROUPS.values(), ids=CONTROL_GROUPS)
def test_memory_of_the_control_group_is_its_limit_and_what_is_held_for_good(tmp_path, groups, files, expected):
    root, process = tmp_path / "cgroup", tmp_path / "self"
    (root / "pod" / "container").mkdir(parents=True)
    (root / "memory" / "box").mkdir(parents=True)
    if groups is not None:
        process.write_text(groups)
    for path, text in files.items():
        (root / path).write_text(text)
    assert device.group_memory(root, process) == expected


def test_torch_keeps_its_number_of_threads_unless_another_is_asked_for():
    before = torch.get_num_threads()
    try:
        configure_torch_threads(intra=before + 1)
        assert torch.get_num_threads() == before + 1
        configure_torch_threads()
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_threads_between_operators_that_cannot_be_changed_are_left_alone(caplog):
    def work():
        for _ in range(2):
            torch.zeros(100_000).add_(1)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    now = torch.get_num_interop_threads()
    configure_torch_threads(intra=torch.get_num_threads(), inter=now)
    assert torch.get_num_interop_threads() == now
    assert caplog.text == ""
